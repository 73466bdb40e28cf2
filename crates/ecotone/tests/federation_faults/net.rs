//! Machines of a network: namespaces of Linux, each with one interface at one bridge, which the
//! test reaches, too. All of them go with the [`Net`].

use std::process::Command;

/// The third byte of the addresses: 198.18.0.0/15 is set aside for tests of networks (RFC 2544).
const SUBNETS: u32 = 250;
/// The test itself.
const OWN_HOST: u8 = 254;
/// An address of Ethernet that nobody has.
const NOBODY: &str = "02:00:00:00:00:01";
/// Names of namespaces begin so; then follow the process of the test and the machine.
const PREFIX: &str = "ecotone-faults-";

pub struct Net {
    process: u32,
    hosts: Vec<u8>,
}

fn run(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

impl Net {
    /// Machines with these numbers.
    ///
    /// # Errors
    /// Why this machine cannot have them, mostly for want of rights.
    pub fn new(hosts: &[u8]) -> Result<Net, String> {
        remove_left_over();
        let net = Net { process: std::process::id(), hosts: hosts.to_vec() };
        let bridge = net.bridge();
        run(&["link", "add", &bridge, "type", "bridge"])?;
        run(&["address", "add", &format!("{}/24", net.ip(OWN_HOST)), "dev", &bridge])?;
        run(&["link", "set", &bridge, "up"])?;
        for host in hosts {
            let (namespace, outer) = (net.namespace(*host), net.interface(*host));
            run(&["netns", "add", &namespace])?;
            run(&["link", "add", &outer, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
            run(&["link", "set", &outer, "master", &bridge, "up"])?;
            run(&["-n", &namespace, "address", "add", &format!("{}/24", net.ip(*host)), "dev", "eth0"])?;
            run(&["-n", &namespace, "link", "set", "lo", "up"])?;
            run(&["-n", &namespace, "link", "set", "eth0", "up"])?;
        }
        Ok(net)
    }

    pub fn ip(&self, host: u8) -> String {
        format!("198.18.{}.{host}", self.process % SUBNETS)
    }

    fn bridge(&self) -> String {
        format!("ec{}b", self.process)
    }

    fn interface(&self, host: u8) -> String {
        format!("ec{}v{host}", self.process)
    }

    fn namespace(&self, host: u8) -> String {
        format!("{PREFIX}{}-{host}", self.process)
    }

    /// A command that runs on this machine. Its process is the command's.
    pub fn command(&self, host: u8, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(host), program]);
        command
    }

    /// From now on nothing that `from` sends arrives at `to`; what `to` sends does.
    pub fn cut(&self, from: u8, to: u8) {
        let (namespace, to) = (self.namespace(from), self.ip(to));
        run(&["-n", &namespace, "neighbour", "replace", &to, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent"])
            .unwrap();
    }

    /// Takes that back.
    pub fn heal(&self, from: u8, to: u8) {
        run(&["-n", &self.namespace(from), "neighbour", "delete", &self.ip(to), "dev", "eth0"]).unwrap();
    }

    /// Pulls the cable of a machine, or plugs it in again: the test does not reach it meanwhile.
    pub fn set_link(&self, host: u8, is_up: bool) {
        run(&["link", "set", &self.interface(host), if is_up { "up" } else { "down" }]).unwrap();
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for host in &self.hosts {
            // With the namespace go its interface and the other end of that.
            let _ = run(&["netns", "delete", &self.namespace(*host)]);
        }
        let _ = run(&["link", "delete", &self.bridge()]);
    }
}

/// What tests left behind that were killed.
fn remove_left_over() {
    let Ok(output) = Command::new("ip").args(["netns", "list"]).output() else { return };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some(name) = line.split(' ').next().filter(|name| name.starts_with(PREFIX)) else { continue };
        let Some((process, _)) = name[PREFIX.len()..].split_once('-') else { continue };
        if !std::path::Path::new("/proc").join(process).exists() {
            let _ = run(&["netns", "delete", name]);
            let _ = run(&["link", "delete", &format!("ec{process}b")]);
        }
    }
}
