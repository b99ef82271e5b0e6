//! What the locks guard: a store on disk that refuses old fences.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use latchwork_lock::Fence;

/// Refuses a write that carries an older fence than one already seen for its key, between
/// processes, and keeps every write that it let through.
///
/// One file a key, locked by `flock` while it is looked at. A line is written by one call, so a
/// writer that is killed has written it or has not.
#[derive(Clone, Debug)]
pub struct FileGate {
    directory: PathBuf,
}

/// A line of the gate: a write, or the announcement of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The fence that came with it.
    pub fence: Fence,
    /// How many writes there have been, with this one.
    pub place: u64,
    /// How many the writer had seen when it got the lock; the same as `place` for an
    /// announcement, which writes nothing.
    pub read: u64,
    /// Whose request it was.
    pub request: u64,
}

/// The fence is older than one already seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Three numbers of twenty digits and one of sixteen, with what stands between them: of equal
/// length, so that the last line can be found without reading the others.
const LINE: usize = 20 * 3 + 16 + 4;

impl FileGate {
    /// A gate that keeps its files in this directory.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(FileGate { directory: directory.to_owned() })
    }

    /// Announces a fence, on acquiring: older holders are refused from here on. Tells how many
    /// writes there have been.
    ///
    /// # Errors
    /// When the file cannot be read or written; [`Refused`] when somebody newer was here.
    pub fn advance(
        &self,
        key: &str,
        fence: Fence,
        request: u64,
    ) -> io::Result<Result<u64, Refused>> {
        self.edit(key, fence, |place| Write { fence, place, read: place, request })
    }

    /// Writes, on the ground of having seen `read` writes. Tells how many there are now.
    ///
    /// # Errors
    /// As for [`advance`](Self::advance).
    pub fn write(
        &self,
        key: &str,
        fence: Fence,
        request: u64,
        read: u64,
    ) -> io::Result<Result<u64, Refused>> {
        self.edit(key, fence, |place| Write { fence, place: place + 1, read, request })
    }

    /// Everything that was let through, in order.
    ///
    /// # Errors
    /// When the file cannot be read or has been tampered with.
    pub fn log(&self, key: &str) -> io::Result<Vec<Write>> {
        match fs::read(self.path(key)) {
            Ok(bytes) => bytes.chunks(LINE).map(parse).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn edit(
        &self,
        key: &str,
        fence: Fence,
        next: impl FnOnce(u64) -> Write,
    ) -> io::Result<Result<u64, Refused>> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(self.path(key))?;
        file.lock()?; // until it is closed
        let mut places = 0;
        if let Some(last) = last(&mut file)? {
            if last.fence > fence {
                return Ok(Err(Refused));
            }
            places = last.place;
        }
        let Write { fence, place, read, request } = next(places);
        let line = format!("{:020} {place:020} {read:020} {request:016x}\n", fence.get());
        debug_assert_eq!(line.len(), LINE);
        file.write_all(line.as_bytes())?;
        Ok(Ok(place))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(key)
    }
}

fn last(file: &mut File) -> io::Result<Option<Write>> {
    if file.metadata()?.len() < LINE as u64 {
        return Ok(None);
    }
    let mut line = [0; LINE];
    file.seek(SeekFrom::End(-(LINE as i64)))?;
    file.read_exact(&mut line)?;
    parse(&line).map(Some)
}

fn parse(line: &[u8]) -> io::Result<Write> {
    let bad = || io::Error::other(format!("not a line of the gate: {line:?}"));
    let text = std::str::from_utf8(line).map_err(|_| bad())?;
    let mut words = text.split_whitespace();
    let mut number = |radix| {
        let word = words.next().ok_or_else(bad)?;
        u64::from_str_radix(word, radix).map_err(|_| bad())
    };
    let (fence, place, read) = (Fence::new(number(10)?), number(10)?, number(10)?);
    Ok(Write { fence, place, read, request: number(16)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_fence_is_refused_and_the_rest_is_kept() {
        let directory = std::env::temp_dir().join(format!("latchwork-gate-{}", std::process::id()));
        let gate = FileGate::new(&directory).expect("a directory");
        let fence = Fence::new;
        assert_eq!(gate.log("k").expect("read"), []);
        assert_eq!(gate.advance("k", fence(5), 1).expect("read"), Ok(0));
        assert_eq!(gate.write("k", fence(5), 1, 0).expect("read"), Ok(1));
        assert_eq!(gate.advance("k", fence(7), 2).expect("read"), Ok(1));
        assert_eq!(gate.write("k", fence(5), 1, 1).expect("read"), Err(Refused));
        assert_eq!(gate.write("other", fence(5), 1, 0).expect("read"), Ok(1));
        assert_eq!(gate.write("k", fence(7), 2, 1).expect("read"), Ok(2));
        let places: Vec<_> = gate.log("k").expect("read").iter().map(|write| write.place).collect();
        assert_eq!(places, [0, 1, 1, 2]);
        fs::remove_dir_all(directory).expect("removed");
    }
}
