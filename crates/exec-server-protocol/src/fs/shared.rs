//! Members that the params of several `fs/*` methods share.

/// Declares params with a policy and a user; a member of type `shared` has the type and the docs that stand here.
///
/// `#[serde(flatten)]` would not do: it rejects params as an array, and hides members that are ignored.
macro_rules! fs_params {
    (@ $head:tt [$($done:tt)*] pub follow_symlinks: shared, $($rest:tt)*) => {
        fs_params! { @ $head [$($done)*
            /// Whether links are followed; default true.
            #[serde(default)]
            pub follow_symlinks: Option<bool>,
        ] $($rest)* }
    };
    (@ $head:tt [$($done:tt)*] pub sandbox: shared, $($rest:tt)*) => {
        fs_params! { @ $head [$($done)*
            #[serde(default)]
            pub sandbox: $crate::fs::Sandbox,
        ] $($rest)* }
    };
    (@ $head:tt [$($done:tt)*] pub user: shared, $($rest:tt)*) => {
        fs_params! { @ $head [$($done)*
            /// User whose rights hold; default: the server's user.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub user: Option<$crate::user::UserName>,
        ] $($rest)* }
    };
    (@ $head:tt [$($done:tt)*] pub durability: shared, $($rest:tt)*) => {
        fs_params! { @ $head [$($done)*
            /// What is synced to disk before the reply.
            #[serde(default)]
            pub durability: Option<$crate::fs::Durability>,
        ] $($rest)* }
    };
    (@ $head:tt [$($done:tt)*] pub if_absent: shared, $($rest:tt)*) => {
        fs_params! { @ $head [$($done)*
            /// Whether an existing file is an error.
            #[serde(default)]
            pub if_absent: Option<bool>,
        ] $($rest)* }
    };
    (@ $head:tt [$($done:tt)*] pub if_match: shared, $($rest:tt)*) => {
        fs_params! { @ $head [$($done)*
            /// Fails unless the current version tag is this one.
            #[serde(default)]
            pub if_match: Option<String>,
        ] $($rest)* }
    };
    (@ $head:tt [$($done:tt)*] pub mode_bits: shared, $($rest:tt)*) => {
        fs_params! { @ $head [$($done)*
            /// Permission bits of the file, new or existing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub mode_bits: Option<u32>,
        ] $($rest)* }
    };
    (@ $head:tt [$($done:tt)*] pub new_mode_bits: shared, $($rest:tt)*) => {
        fs_params! { @ $head [$($done)*
            /// Permission bits of a newly created file.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub new_mode_bits: Option<u32>,
        ] $($rest)* }
    };
    (@ $head:tt [$($done:tt)*] pub modified_at_ms: shared, $($rest:tt)*) => {
        fs_params! { @ $head [$($done)*
            /// Modification time, in Unix milliseconds.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub modified_at_ms: Option<i64>,
        ] $($rest)* }
    };
    (@ $head:tt [$($done:tt)*] $(#[$meta:meta])* pub $member:ident: $kind:ty, $($rest:tt)*) => {
        fs_params! { @ $head [$($done)* $(#[$meta])* pub $member: $kind,] $($rest)* }
    };
    (@ [$(#[$meta:meta])* $name:ident] [$($done:tt)*]) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $($done)*
        }

        impl $crate::params::Scoped for $name {
            fn take_scope(&mut self) -> ($crate::fs::Sandbox, Option<$crate::user::UserName>) {
                (self.sandbox.take(), self.user.take())
            }
        }
    };
    ($($(#[$meta:meta])* pub struct $name:ident { $($members:tt)* })*) => {
        $(fs_params! { @ [$(#[$meta])* $name] [] $($members)* })*
    };
}
