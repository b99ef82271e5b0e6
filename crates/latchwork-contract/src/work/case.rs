//! One promise, put to the test in one way.

use futures::future::LocalBoxFuture;

use super::Fixture;

/// One test of one promise.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, which begins with the promise: `w03_no_two_agents_get_one_item`.
    pub name: &'static str,
    /// The number of the promise, 1 to 20.
    pub promise: u8,
    /// The test; it panics when the promise is broken.
    pub run: fn(Fixture) -> LocalBoxFuture<'static, ()>,
}

impl Case {
    /// A case whose promise is the number in its name.
    pub const fn new(name: &'static str, run: fn(Fixture) -> LocalBoxFuture<'static, ()>) -> Self {
        let text = name.as_bytes();
        assert!(text[0] == b'w' && text[3] == b'_', "a case's name begins with w01_ to w20_");
        let promise = (text[1] - b'0') * 10 + (text[2] - b'0');
        assert!(promise >= 1 && promise <= 20, "there are promises 1 to 20");
        Case { name, promise, run }
    }
}

/// The cases of the functions with these names.
macro_rules! cases {
    ($($run:ident),* $(,)?) => {
        pub(super) const CASES: &[$crate::work::Case] = &[
            $($crate::work::Case::new(stringify!($run), |fixture| Box::pin($run(fixture)))),*
        ];
    };
}
pub(super) use cases;
