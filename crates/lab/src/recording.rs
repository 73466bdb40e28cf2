//! All that the servers of a lab recorded, in memory and as files.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use ecotone_server::record::{Final, Job, Record, Sample};

use crate::error::LabError;

/// All runs of a lab.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// One for each policy, in the order of the report's runs.
    pub runs: Vec<PolicyRecording>,
}

/// All servers of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyRecording {
    /// The policy's name, with `+` and the least length of a value that is separated, where any is.
    pub policy: String,
    /// That length in bytes.
    pub separation_min_bytes: Option<u32>,
    /// The servers in the profile's order.
    pub servers: Vec<ServerRecording>,
}

/// What one server recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerRecording {
    /// The server's name.
    pub server: String,
    /// One for each second, in the order of time.
    pub samples: Vec<Sample>,
    /// The compactions it owned, in the order they finished.
    pub jobs: Vec<Job>,
    /// The sums of its run.
    pub sums: Option<Final>,
}

impl ServerRecording {
    /// Adds what a server printed. A `ready` adds nothing.
    pub fn add(&mut self, record: Record) {
        match record {
            Record::Ready(_) => {}
            Record::Sample(sample) => self.samples.push(sample),
            Record::Job(job) => self.jobs.push(job),
            Record::Final(sums) => self.sums = Some(sums),
        }
    }

    /// Writes the records as they were printed, one JSON object a line.
    pub(crate) fn write(&self, path: &Path) -> Result<(), LabError> {
        let cannot = |source: std::io::Error| LabError::io("cannot write records", path)(source);
        let mut file = BufWriter::new(File::create(path).map_err(cannot)?);
        let samples = self.samples.iter().cloned().map(Record::Sample);
        let jobs = self.jobs.iter().cloned().map(Record::Job);
        for record in samples.chain(jobs).chain(self.sums.iter().cloned().map(Record::Final)) {
            serde_json::to_writer(&mut file, &record).map_err(|error| cannot(error.into()))?;
            file.write_all(b"\n").map_err(cannot)?;
        }
        file.flush().map_err(cannot)
    }
}
