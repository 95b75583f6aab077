//! Detects equivalent policies, so that prepared state can be shared.

use std::fmt;
use std::sync::Arc;

use exec_server_protocol::sandbox::Network;

use super::{Access, FilePolicy, FileRules, Policy};

/// Equal for equivalent policies, in this process and in any other.
///
/// It holds the whole policy instead of a hash, so that a request cannot forge a collision.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyDigest(Arc<[u8]>);

/// Changes whenever the meaning of the bytes changes.
const VERSION: u8 = 1;

impl Policy {
    /// Encodes the policy for comparison.
    pub fn digest(&self) -> PolicyDigest {
        let mut bytes = vec![VERSION, (self.network == Network::Enabled).into()];
        match &self.files {
            FilePolicy::Restricted(rules) if !rules.writes_everything() => {
                bytes.push(1);
                describe(rules, &mut bytes);
            }
            FilePolicy::Restricted(_) | FilePolicy::Unrestricted => bytes.push(0),
        }
        PolicyDigest(bytes.into())
    }
}

impl PolicyDigest {
    /// The bytes; only for comparison.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A short form for logs.
impl fmt::Debug for PolicyDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        // FNV-1a: sufficient to tell log lines apart.
        let hash = self.0.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        write!(formatter, "PolicyDigest({hash:016x})")
    }
}

fn describe(rules: &FileRules, bytes: &mut Vec<u8>) {
    bytes.push(number(rules.full_disk()));
    let places = rules.places();
    add_count(places.len(), bytes);
    for (path, access) in places {
        bytes.push(number(access));
        add(path.as_os_str().as_encoded_bytes(), bytes);
    }
    add_count(rules.minimal().len(), bytes);
    for path in rules.minimal() {
        add(path.as_os_str().as_encoded_bytes(), bytes);
    }
    for glob in rules.deny_globs() {
        glob.describe(|field| add(field, bytes));
    }
}

/// Prefixed with its length, so that different lists of fields never encode equally.
fn add(field: &[u8], bytes: &mut Vec<u8>) {
    add_count(field.len(), bytes);
    bytes.extend_from_slice(field);
}

fn add_count(count: usize, bytes: &mut Vec<u8>) {
    bytes.extend((count as u64).to_le_bytes());
}

fn number(access: Access) -> u8 {
    match access {
        Access::None => 0,
        Access::Read => 1,
        Access::Write => 2,
    }
}
