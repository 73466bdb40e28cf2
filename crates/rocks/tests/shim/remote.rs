//! Jobs and results as bytes of any origin: what is sound is read and written back unchanged, what
//! is not ends in an error.

use std::path::Path;
use std::sync::OnceLock;

use crate::job::{Job, Shape, run};
use ecotone_rocks::Error;
use ecotone_rocks::remote::{RemoteInput, RemoteResult};
use proptest::prelude::*;

/// One real job, made once.
fn job() -> &'static Job {
    static JOBS: OnceLock<(tempfile::TempDir, Vec<Job>)> = OnceLock::new();
    let (_root, jobs) = JOBS.get_or_init(|| {
        let root = tempfile::tempdir().expect("a directory");
        let shape = Shape { keys: 1000, value_bytes: 100, subcompactions: 3, range_deletions: true, seed: 5 };
        let jobs = run(root.path(), shape);
        (root, jobs)
    });
    jobs.iter().max_by_key(|job| job.result.output_files.len()).expect("a job")
}

#[test]
fn a_job_says_what_it_is() {
    let input = &job().input;
    assert_eq!(input.cf_name, "default");
    assert!(!input.input_files.is_empty() && input.input_files.iter().all(|name| name.ends_with(".sst")));
    assert!(input.output_level > 0);
    assert!(!input.snapshots.is_empty() && input.snapshots.is_sorted());
    assert!(!input.db_id.is_empty());
    assert!(input.options_file_number > 0);
    assert!(input.min_manifest_file_number > 0 && input.min_manifest_file_bytes > 0);
}

#[test]
fn a_result_says_what_was_made() {
    let result = &job().result;
    assert_eq!(result.status, Ok(()));
    assert_eq!(result.output_level, job().input.output_level);
    assert!(!result.output_files.is_empty());
    let bytes: u64 = result.output_files.iter().map(|output| output.file_bytes).sum();
    assert_eq!(result.stats.output_bytes, bytes);
    assert_eq!(result.stats.output_files, result.output_files.len() as u64);
    assert!(result.stats.input_records > 0 && result.stats.elapsed_us > 0);
    for output in &result.output_files {
        assert_eq!(output.file_bytes, std::fs::metadata(job().path(output)).expect("exists").len());
        assert!(output.smallest_internal_key.len() > 8 && output.largest_internal_key.len() > 8);
        assert_eq!(output.file_checksum_func_name, "FileChecksumCrc32c");
        assert_ne!(output.unique_id, [0, 0]);
    }
}

#[test]
fn only_the_path_changes_when_a_result_is_moved() {
    let moved_bytes =
        RemoteResult::with_output_path(&job().result_bytes, Path::new("/elsewhere/job; a=b")).expect("moves");
    let moved = RemoteResult::parse(&moved_bytes).expect("a result");
    assert_eq!(moved.output_path, Path::new("/elsewhere/job; a=b"));
    assert_eq!(RemoteResult { output_path: job().result.output_path.clone(), ..moved }, job().result);
    let back = RemoteResult::with_output_path(&moved_bytes, &job().result.output_path).expect("moves back");
    assert_eq!(RemoteResult::parse(&back).expect("a result"), job().result);
}

#[test]
fn a_name_that_leads_out_of_the_directory_is_refused() {
    // RocksDB writes names as hexadecimal digits.
    let hexadecimal = |text: &str| text.bytes().map(|byte| format!("{byte:02X}")).collect::<String>();
    let name = hexadecimal(&job().result.output_files[0].file_name);
    for trick in ["../000.sst", "/etc/pass.w", "a/00/0.sst", "000001.log", "00000a.sst", "0000001.ss"] {
        let text = String::from_utf8_lossy(&job().result_bytes).into_owned();
        assert!(text.contains(&name));
        match RemoteResult::parse(text.replace(&name, &hexadecimal(trick)).as_bytes()) {
            Err(Error::Malformed { .. }) => {}
            other => panic!("{trick}: {other:?}"),
        }
    }
}

#[test]
fn what_is_cut_short_is_refused_or_read_as_less() {
    // Never a crash, never an output that was not there.
    for len in 0..job().result_bytes.len().min(4000) {
        if let Ok(result) = RemoteResult::parse(&job().result_bytes[..len]) {
            assert!(result.output_files.len() <= job().result.output_files.len());
        }
    }
    for len in 0..job().input_bytes.len() {
        let _ = RemoteInput::parse(&job().input_bytes[..len]);
    }
    assert!(RemoteResult::parse(&[]).is_err() && RemoteInput::parse(&[]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_bytes_are_no_result_and_no_job(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = RemoteInput::parse(&bytes);
        let _ = RemoteResult::parse(&bytes);
        let _ = RemoteResult::with_output_path(&bytes, Path::new("/x"));
    }

    #[test]
    fn words_behind_the_right_version_do_no_harm(text in "[a-z_]{0,12}(=[{};:a-z0-9=]{0,40};){0,6}") {
        let mut bytes = vec![1, 0, 0, 0];
        bytes.extend_from_slice(text.as_bytes());
        let _ = RemoteInput::parse(&bytes);
        let _ = RemoteResult::parse(&bytes);
    }

    #[test]
    fn a_damaged_result_never_harms_the_process(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = job().result_bytes.clone();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(result) = RemoteResult::parse(&bytes) {
            for output in &result.output_files {
                prop_assert!(!output.file_name.contains('/'));
            }
        }
    }
}
