//! The size of a directory.

use std::io::ErrorKind;
use std::path::Path;

use crate::{Error, Result};

/// The bytes of all files below a directory, by their lengths: what was written, not what the file
/// system set aside (RocksDB reserves space for its logs ahead of time). Files that vanish
/// meanwhile count as nothing; links are not followed.
pub fn directory_bytes(root: &Path) -> Result<u64> {
    let mut bytes = 0;
    let mut open = vec![root.to_path_buf()];
    while let Some(directory) = open.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound && directory != root => continue,
            Err(error) => return Err(Error::io("list", &directory, error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| Error::io("list", &directory, error))?;
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => open.push(entry.path()),
                Ok(metadata) if metadata.is_file() => bytes += metadata.len(),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("read the length of", entry.path(), error)),
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_all_depths_count_and_links_do_not() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), [0; 100]).unwrap();
        std::fs::create_dir_all(directory.path().join("b/c")).unwrap();
        std::fs::write(directory.path().join("b/c/d"), [0; 23]).unwrap();
        std::os::unix::fs::symlink(directory.path().join("a"), directory.path().join("link")).unwrap();
        assert_eq!(directory_bytes(directory.path()).unwrap(), 123);
    }

    #[test]
    fn a_missing_directory_is_an_error_that_names_it() {
        let error = directory_bytes(Path::new("/no/such/place")).unwrap_err().to_string();
        assert!(error.contains("/no/such/place"), "{error}");
    }
}
