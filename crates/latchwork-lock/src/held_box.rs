//! Where a lease stays, and what becomes of its room.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use crate::Held;

/// A lease in its box. When it ends, the thread keeps the room for its next one: to give memory
/// back and ask for it again was an eighth of the instructions of a lock in memory.
pub(crate) struct HeldBox(
    /// None only within `drop`, and after `take`.
    Option<Room>,
);

/// Empty while it is spare.
type Room = Box<Option<Held>>;

thread_local! {
    static SPARE: Cell<Option<Room>> = const { Cell::new(None) };
}

impl HeldBox {
    /// Puts a lease into its room, where it is written in place.
    #[inline]
    pub(crate) fn new(held: impl FnOnce() -> Held) -> Self {
        // A thread that ends has no spare room any more.
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let mut room = spare.unwrap_or_else(|| Box::new(None));
        // Nothing was in it. To assign would ask that again, and copy the lease on its way.
        std::mem::forget(room.replace(held()));
        HeldBox(Some(room))
    }

    /// The lease without its box.
    pub(crate) fn into_inner(mut self) -> Held {
        self.take()
    }

    /// The same, of a box that is dropped or assigned to next.
    pub(crate) fn take(&mut self) -> Held {
        let room = self.0.take().map(|mut room| (room.take(), room));
        let Some((Some(held), room)) = room else { unreachable!("only this and `drop` take it") };
        let _ = SPARE.try_with(|spare| spare.replace(Some(room)));
        held
    }
}

impl Deref for HeldBox {
    type Target = Held;

    #[inline]
    fn deref(&self) -> &Held {
        match self.0.as_deref() {
            Some(Some(held)) => held,
            _ => unreachable!("only `take` and `drop` take it"),
        }
    }
}

impl DerefMut for HeldBox {
    #[inline]
    fn deref_mut(&mut self) -> &mut Held {
        match self.0.as_deref_mut() {
            Some(Some(held)) => held,
            _ => unreachable!("only `take` and `drop` take it"),
        }
    }
}

impl Drop for HeldBox {
    #[inline]
    fn drop(&mut self) {
        let Some(mut room) = self.0.take() else { return };
        // First, and outside of the thread's room: with the last handle a whole backend may end.
        *room = None;
        // A thread that ends keeps nothing, and one that has room already needs no more.
        let _ = SPARE.try_with(|spare| spare.replace(Some(room)));
    }
}
