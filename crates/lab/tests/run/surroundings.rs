//! What surrounds a lab under test: folders for cores, a program for servers, and a look at what is
//! left.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use ecotone_bench::workload::Workload;
use ecotone_lab::{
    EmulatedCores, Emulation, Host, LabError, LabOptions, LabReport, Profile, Progress, Quiet, run_lab_on,
};

use crate::server::{CONDUCT, SERVE};

/// Makes folders instead of cores. They remove themselves, and note whether their server was gone
/// by then.
pub struct Folders {
    pub root: PathBuf,
    orphans: Arc<Mutex<Vec<String>>>,
}

struct Folder {
    path: PathBuf,
    orphans: Arc<Mutex<Vec<String>>>,
}

impl Emulation for Folders {
    fn create(&self, server: &str, _cores: u32, speed: f64) -> Result<EmulatedCores, String> {
        if speed > 1.0 {
            return Err("no such core".to_owned());
        }
        let path = self.root.join(server);
        fs::create_dir(&path).map_err(|error| error.to_string())?;
        let guard = Folder { path: path.clone(), orphans: self.orphans.clone() };
        Ok(EmulatedCores { path, guard: Box::new(guard) })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A server writes its processes' ids there, as it would enter a cgroup. A killed one needs
        // a moment to end.
        let deadline = Instant::now() + Duration::from_secs(60);
        let ids = fs::read_to_string(self.path.join("ids")).unwrap_or_default();
        for id in ids.lines() {
            while lives(id) {
                if Instant::now() > deadline {
                    self.orphans.lock().unwrap().push(id.to_owned());
                    break;
                }
                thread::yield_now();
            }
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

pub fn lives(id: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

/// A lab's surroundings, and whether it left them clean.
pub struct Bench {
    pub directory: PathBuf,
    pub emulation: Folders,
    _guard: Option<tempfile::TempDir>,
}

impl Bench {
    pub fn new() -> Bench {
        let guard = tempfile::tempdir().unwrap();
        for folder in ["cores", "stores"] {
            fs::create_dir(guard.path().join(folder)).unwrap();
        }
        let bench = Bench::at(guard.path().to_owned());
        Bench { _guard: Some(guard), ..bench }
    }

    pub fn at(directory: PathBuf) -> Bench {
        Bench { emulation: Folders { root: directory.join("cores"), orphans: Arc::default() }, directory, _guard: None }
    }

    pub fn options(&self, conduct: &str, policies: &[&str]) -> LabOptions {
        let profile = Profile::load("three-tier").unwrap();
        let policies = policies.iter().map(|policy| policy.parse().unwrap()).collect();
        let mut options = LabOptions::new(Workload::FillRandom, profile, policies, 2).unwrap();
        options.stores = Some(self.directory.join("stores"));
        options.server_program = self.program(conduct);
        options
    }

    /// A script that starts this program again as a server. What the test's frame prints is kept
    /// from the lab: records go to the third descriptor.
    fn program(&self, conduct: &str) -> PathBuf {
        let path = self.directory.join("server.sh");
        let own = std::env::current_exe().unwrap();
        let script = format!(
            "#!/bin/sh\nexport {SERVE}=\"$*\" {CONDUCT}={conduct}\nexec '{}' --exact server::serves --nocapture 3>&1 >/dev/null\n",
            own.display()
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    pub fn run(&self, options: &LabOptions, progress: &mut dyn Progress) -> Result<LabReport, LabError> {
        let host = Host { cores: 2.0, ..Host::default() };
        let result = run_lab_on(options, &self.emulation, host, progress);
        assert_eq!(*self.emulation.orphans.lock().unwrap(), [] as [String; 0], "servers outlived their cores");
        for folder in ["cores", "stores"] {
            let left: Vec<_> = fs::read_dir(self.directory.join(folder)).unwrap().flatten().collect();
            assert!(left.is_empty(), "left behind: {left:?}");
        }
        result
    }

    pub fn fails(&self, options: &LabOptions) -> String {
        let begin = Instant::now();
        let error = self.run(options, &mut Quiet).unwrap_err().to_string();
        assert!(begin.elapsed() < Duration::from_secs(60), "it took {:?}", begin.elapsed());
        error
    }
}
