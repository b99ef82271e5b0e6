//! Who was in when, written by processes that may be killed at any instant.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::time::Duration;

use latchwork_lock::{Fence, Held};

use super::{Child, Part, secs};

pub struct Log(File);

impl Log {
    pub fn open(path: &str) -> Self {
        Log(OpenOptions::new().append(true).create(true).open(path).expect("a log"))
    }

    pub fn enter(&mut self, fence: Fence) {
        self.write("enter", fence);
    }

    /// A holder that trusts its lease after the line was written was alone when it was.
    pub fn leave(&mut self, held: &Held) {
        self.write("leave", held.fence());
        if held.is_held() {
            self.write("sure", held.fence());
        }
    }

    /// By one call: a process that is killed has written the line or has not.
    fn write(&mut self, what: &str, fence: Fence) {
        self.0.write_all(format!("{what} {fence}\n").as_bytes()).expect("written");
    }
}

/// Lets several processes take the key in turns, kills one after another at any instant, and
/// reads what they wrote: nobody was in together, and fences grew. Gives the last fence.
pub fn kill_at_any_instant(part: &Part, processes: usize, pause: Duration) -> u64 {
    let mut children: Vec<Child> = (0..processes).map(|_| part.start()).collect();
    children.iter().for_each(|child| drop(child.expect_line("ready")));
    let began = std::time::Instant::now();
    let mut kills = 0;
    while began.elapsed() < secs(4) || kills < 12 {
        // A different instant each time; where in its loop that hits nobody knows.
        let odd = u32::try_from(kills % 41).expect("small");
        std::thread::sleep(pause + pause / 8 * odd);
        let victim = kills % processes;
        std::mem::replace(&mut children[victim], part.start()).kill();
        kills += 1;
    }
    children.into_iter().for_each(Child::kill);
    let log = fs::read_to_string(&part.place).expect("reads");
    let (mut last, mut inside, mut entered) = (0, None, 0);
    let mut disturbed = HashSet::new();
    for line in log.lines() {
        let (what, fence) = line.split_once(' ').expect("two words");
        let fence: u64 = fence.parse().expect("a fence");
        match what {
            "enter" => {
                assert!(fence > last, "fences grow: {line} after {last}");
                (last, inside) = (fence, Some(fence)); // the holder inside was killed there
                entered += 1;
            }
            "leave" if inside.take() != Some(fence) => drop(disturbed.insert(fence)),
            "leave" => {}
            _ => assert!(!disturbed.contains(&fence), "somebody else came in: {line}"),
        }
    }
    println!("{kills} kills, {entered} entries");
    assert!(last > 0, "nobody ever came in");
    last
}
