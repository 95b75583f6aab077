//! Schemas of the types whose encoding is hand-written.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::bytes64::Bytes64;
use crate::envelope::RequestId;
use crate::fs::{Data64, SandboxText};
use crate::params::NoParams;
use crate::path_uri::PathUri;
use crate::sandbox::SandboxParams;
use crate::user::UserName;

macro_rules! schema {
    ($type:ty, $name:literal, $($body:tt)*) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($($body)*)
            }
        }
    };
}

schema!(PathUri, "PathUri", {
    "type": "string",
    "format": "uri",
    "pattern": "^[fF][iI][lL][eE]:[^?#]*$",
    "description": "An absolute path as a `file:` URI without host, query and fragment. Bytes that are not UTF-8 are percent-encoded.",
});

schema!(Bytes64, "Base64", {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^[A-Za-z0-9+/]*={0,2}$",
    "description": "Bytes as base64, with the standard alphabet and padding.",
});

schema!(RequestId, "RequestId", {
    "type": ["string", "integer"],
    "format": "int64",
    "description": "A string, or a signed 64-bit integer.",
});

schema!(UserName, "UserName", {
    "type": ["string", "integer"],
    "minimum": 0,
    "maximum": 4_294_967_295_u32,
    "description": "A user of the server's machine: a name, or a user id as text or as an integer.",
});

schema!(NoParams, "NoParams", {
    "type": ["object", "null"],
    "properties": {"_meta": {}},
    "additionalProperties": false,
    "description": "No params: `{}`, `null`, or no `params` at all.",
});

impl JsonSchema for Data64 {
    fn schema_name() -> Cow<'static, str> {
        Bytes64::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Bytes64::json_schema(generator)
    }
}

/// The raw text of a policy has the schema of the policy.
impl JsonSchema for SandboxText {
    fn schema_name() -> Cow<'static, str> {
        SandboxParams::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        SandboxParams::json_schema(generator)
    }
}
