//! Replays the committed seeds of the fuzz targets, past findings among them, without a fuzzer.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[path = "../../../../fuzz/src/targets.rs"]
#[allow(dead_code, reason = "the fuzzer calls each target by its name")]
mod targets;

#[test]
fn every_seed_of_every_fuzz_target_passes() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let mut found = BTreeSet::new();
    for dir in fs::read_dir(&seeds).unwrap() {
        found.insert(dir.unwrap().file_name().into_string().unwrap());
    }
    let known: BTreeSet<String> = targets::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, known, "each target has seeds, and each directory a target");
    for (name, target) in targets::ALL {
        let mut count = 0;
        for seed in fs::read_dir(seeds.join(name)).unwrap() {
            let path = seed.unwrap().path();
            let data = fs::read(&path).unwrap();
            let outcome = std::panic::catch_unwind(|| target(&data));
            assert!(outcome.is_ok(), "{}", path.display());
            count += 1;
        }
        assert!(count >= 3, "{name} has {count} seeds");
    }
}
