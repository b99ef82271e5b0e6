//! File systems on which a database is not safe.

use std::path::Path;

use crate::{Error, Result};

/// Refuses a file on a file system that other machines may use too.
///
/// The log's index is memory that the processes of one machine share, and the locks of such file
/// systems are not to be trusted: <https://www.sqlite.org/wal.html>, <https://www.sqlite.org/howtocorrupt.html>.
pub(super) fn refuse(file: &Path) -> Result<()> {
    // The nearest that is there: the file may be yet to be made.
    let Some(found) = file.ancestors().find(|path| path.exists()) else { return Ok(()) };
    match kind(found).and_then(name) {
        None => Ok(()),
        Some(name) => Err(Error::permanent(
            format!(
                "the file is on a {name} file system, which other machines may use too, and there \
                 a database is not safe; name a file on a local disk, or, if no other machine uses \
                 it, add allow-network-fs=true"
            ),
            None,
        )),
    }
}

#[cfg(target_os = "linux")]
fn kind(path: &Path) -> Option<u32> {
    // The field's width depends on the machine; the numbers have 32 bits.
    rustix::fs::statfs(path).ok().map(|found| found.f_type as u32)
}

#[cfg(not(target_os = "linux"))]
fn kind(_: &Path) -> Option<u32> {
    None
}

/// By the number that statfs(2) tells.
fn name(kind: u32) -> Option<&'static str> {
    Some(match kind {
        0x6969 => "NFS",
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => "SMB",
        0x0102_1997 => "9p",
        0x6573_5546 => "FUSE",
        0x5346_414F => "AFS",
        0x00C3_6400 => "Ceph",
        0x0BD0_0BD0 => "Lustre",
        0x0116_1970 => "GFS2",
        0x7461_636F => "OCFS2",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_file_systems_are_welcome_and_others_are_not() {
        assert_eq!(name(0x6969), Some("NFS"));
        assert_eq!(name(0xFF53_4D42_u32.cast_signed() as u32), Some("SMB"));
        for local in [0xEF53, 0x0102_1994, 0x5846_5342, 0x9123_683E, 0x794C_7630, 0x2FC1_2FC1] {
            assert_eq!(name(local), None, "ext4, tmpfs, xfs, btrfs, overlay, zfs");
        }
        refuse(&std::env::temp_dir().join("no/such/file.db")).expect("a local disk");
    }
}
