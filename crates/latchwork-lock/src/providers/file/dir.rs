//! An open directory and the files in it.
//!
//! Root may lock in a directory of another user, who may swap anything in it at any time. So files are
//! reached by descriptor and one name, never by a path, and no link is followed: nothing outside can be
//! written, and what is new is given to the directory's owner before anybody else can see it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, fchown, fstat, mkdirat, openat,
    readlinkat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, getegid, geteuid};

/// A directory by descriptor, and the path by which people know it.
pub(super) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
    /// Whose new files are to be; none when they are that anyhow, or cannot be given away.
    owner: Option<(Uid, Gid)>,
}

const PRIVATE_DIR: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Without it a link that leads in circles would be followed for ever; the kernel's own limit.
const MOST_LINKS: usize = 40;

impl Dir {
    /// Opens a directory by its absolute path, and makes it where it is missing. `check` sees the last
    /// directory that was there, before anything is made.
    ///
    /// A link of another user is followed only to a directory of that user: root would otherwise make
    /// files wherever a link leads.
    pub(super) fn open(
        path: &Path,
        check: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut check = Some(check);
        let mut at =
            Dir::new(openat(CWD, "/", OFlags::PATH | DIRECTORY, Mode::empty())?, "/".into())?;
        let mut left: Vec<OsString> = names(path);
        let mut links: Vec<Uid> = Vec::new();
        while let Some(name) = left.pop() {
            at = match at.step(&name) {
                Ok(next) => next,
                Err(Errno::NOENT) => {
                    refuse_strangers_links(&at, &links)?;
                    if let Some(check) = check.take() {
                        check(&at.fd)?;
                    }
                    at.child(&name)?
                }
                // A link, or no directory at all.
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let target =
                        readlinkat(&at.fd, &*name, Vec::new()).map_err(|_| Errno::NOTDIR)?;
                    let owner =
                        Uid::from_raw(statat(&at.fd, &*name, AtFlags::SYMLINK_NOFOLLOW)?.st_uid);
                    links.push(owner);
                    if links.len() > MOST_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    if target.is_absolute() {
                        at = Dir::new(
                            openat(CWD, "/", OFlags::PATH | DIRECTORY, Mode::empty())?,
                            "/".into(),
                        )?;
                    }
                    left.extend(names(&target));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
        }
        refuse_strangers_links(&at, &links)?;
        if let Some(check) = check.take() {
            check(&at.fd)?;
        }
        // So far it was only passed through; from now on it is read.
        let fd = openat(&at.fd, ".", OFlags::RDONLY | DIRECTORY, Mode::empty())?;
        Dir::new(fd, path.to_owned())
    }

    fn new(fd: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let found = fstat(&fd)?;
        let owner = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
        let foreign = geteuid().is_root() && owner != (geteuid(), getegid());
        Ok(Dir { fd, path, id: id(&found), owner: foreign.then_some(owner) })
    }

    fn step(&self, name: &OsStr) -> Result<Dir, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | DIRECTORY;
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        Dir::new(fd, self.path.join(name))
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    /// A directory in this one, made where it is missing.
    pub(super) fn child(&self, name: impl AsRef<OsStr>) -> io::Result<Dir> {
        let name = name.as_ref();
        loop {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | DIRECTORY;
            match openat(&self.fd, name, flags, Mode::empty()) {
                Ok(fd) => return Dir::new(fd, self.path.join(name)),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            let made = match self.owner {
                None => mkdirat(&self.fd, name, PRIVATE_DIR),
                Some(owner) => self.make_for(owner, name),
            };
            match made {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes a directory under another name, gives it away, and only then names it.
    fn make_for(&self, owner: (Uid, Gid), name: &OsStr) -> rustix::io::Result<()> {
        let aside = aside(name);
        mkdirat(&self.fd, &*aside, PRIVATE_DIR)?;
        let named = (|| {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | DIRECTORY;
            let fd = openat(&self.fd, &*aside, flags, Mode::empty())?;
            // The owner may have put another one in its place: one with something in it is not ours.
            if rustix::fs::Dir::read_from(&fd)?
                .filter_map(Result::ok)
                .any(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))
            {
                return Err(Errno::NOTEMPTY);
            }
            fchown(&fd, Some(owner.0), Some(owner.1))?;
            renameat_with(&self.fd, &*aside, &self.fd, name, RenameFlags::NOREPLACE)
        })();
        if named.is_err() {
            let _ = unlinkat(&self.fd, &*aside, AtFlags::REMOVEDIR);
        }
        named
    }

    /// Where a file is, for people.
    pub(super) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Whether its path still leads here.
    pub(super) fn is_in_place(&self) -> bool {
        rustix::fs::stat(&self.path).is_ok_and(|named| id(&named) == self.id)
    }

    /// A new and empty file, instead of whatever has this name.
    pub(super) fn create(&self, name: &str) -> io::Result<File> {
        loop {
            match self.make(OsStr::new(name)) {
                Ok(file) => return self.given(file),
                Err(Errno::EXIST) => self.remove(name)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A file to read and write, made where it is missing.
    pub(super) fn open_or_create(&self, name: &str) -> io::Result<File> {
        loop {
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match openat(&self.fd, name, flags, Mode::empty()) {
                Ok(fd) => return self.checked(fd),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            let made = match self.owner {
                None => self.make(OsStr::new(name)),
                Some(_) => {
                    // Nobody may find it before it is given away: not its owner, who could not open it.
                    let aside = aside(OsStr::new(name));
                    let file = self.make(&aside)?;
                    let named = self.given(file).and_then(|file| {
                        let flags = RenameFlags::NOREPLACE;
                        renameat_with(&self.fd, &*aside, &self.fd, name, flags)?;
                        Ok(file)
                    });
                    if named.is_err() {
                        let _ = unlinkat(&self.fd, &*aside, AtFlags::empty());
                    }
                    named.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
                }
            };
            match made {
                Ok(file) => return Ok(file),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn make(&self, name: &OsStr) -> rustix::io::Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.fd, name, flags, PRIVATE_FILE).map(File::from)
    }

    /// Gives a new file to the directory's owner.
    fn given(&self, file: File) -> io::Result<File> {
        if let Some((user, group)) = self.owner {
            fchown(&file, Some(user), Some(group))?;
        }
        Ok(file)
    }

    /// A file that was there before. Where another user is the owner it must have no other name,
    /// which might be outside.
    fn checked(&self, fd: OwnedFd) -> io::Result<File> {
        let found = fstat(&fd)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is no regular file; remove it"));
        }
        if self.owner.is_some() && found.st_nlink != 1 {
            return Err(io::Error::other("it has several names (hard links); remove it"));
        }
        Ok(File::from(fd))
    }

    pub(super) fn read(&self, name: impl AsRef<OsStr>) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name.as_ref(), flags, Mode::empty())?;
        let found = fstat(&fd)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is no regular file; remove it"));
        }
        let mut text = Vec::with_capacity(usize::try_from(found.st_size).unwrap_or(0).min(1 << 16));
        File::from(fd).read_to_end(&mut text)?;
        Ok(text)
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match unlinkat(&self.fd, name.as_ref(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves a file into a directory, instead of whatever has that name there.
    pub(super) fn rename(&self, name: &str, to: &Dir, new_name: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, name, &to.fd, new_name)?)
    }

    /// When a file was last changed; none if it is not there.
    pub(super) fn modified(&self, name: &str) -> Option<i64> {
        statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|found| found.st_mtime)
    }

    /// The names of all files.
    pub(super) fn list(&self) -> io::Result<Vec<OsString>> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                found.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(found)
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

fn id(of: &Stat) -> (u64, u64) {
    (of.st_dev, of.st_ino)
}

/// A name that nobody else chooses.
fn aside(name: &OsStr) -> OsString {
    let mut aside = OsString::from(".");
    aside.push(name);
    aside.push(format!(".{:016x}", rand::random::<u64>()));
    aside
}

/// The steps of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let step = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(step).rev().collect()
}

/// See [`Dir::open`]; `links` are the owners of the links on the way.
fn refuse_strangers_links(at: &Dir, links: &[Uid]) -> io::Result<()> {
    let owner = Uid::from_raw(fstat(&at.fd)?.st_uid);
    let strange = |user: &&Uid| !user.is_root() && **user != geteuid() && **user != owner;
    let Some(user) = links.iter().find(strange) else { return Ok(()) };
    Err(io::Error::other(format!(
        "a symbolic link of user {} leads to {}, which is another one's; name the directory itself",
        user.as_raw(),
        at.path.display()
    )))
}
