//! Enums whose variants have one name, the same in Rust, SQL, JSON and messages.

/// Declares an enum of named variants with `ALL`, `as_str`, `Display`, `FromStr` and serde by name.
macro_rules! named {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident ($what:literal) {
            $( $(#[$variant_meta:meta])* $variant:ident = $text:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[derive(serde::Serialize, serde::Deserialize)]
        $vis enum $name {
            $( $(#[$variant_meta])* #[serde(rename = $text)] $variant, )+
        }

        impl $name {
            /// Every variant, in the order of declaration.
            pub const ALL: &'static [$name] = &[ $( $name::$variant, )+ ];

            /// The name in SQL, JSON and messages.
            pub const fn as_str(self) -> &'static str {
                match self { $( $name::$variant => $text, )+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|each| each.as_str() == text).ok_or_else(|| {
                    let known = Self::ALL.iter().map(|each| each.as_str()).collect();
                    crate::ErrorKind::UnknownName { what: $what, name: text.to_owned(), known }
                        .into()
                })
            }
        }
    };
}

pub(crate) use named;
