//! Wires one server: cores, meter, federation, stores, monitor.
//!
//! Start order: the federation first, since the stores' compactions are placed by it; the load is
//! reported once the stores are open; clients last. Stop order: clients first, then the stores, so
//! that no compaction asks a federation that is gone. Metrics and health checks come before all and
//! go last, so that who asks is always answered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ecotone_cluster::{Federation, FederationStatistics, Limits, Options};
use ecotone_energy::cores::{Affinity, CgroupCores, CoreBinder, Unbound};
use ecotone_energy::{EnergyMeter, EnergyThread, PowerModel, Reading, ThreadDuties, machine_model};
use ecotone_engine::{Counters, LocalSlots, Store};
use ecotone_io::tap::WriteTap;
use ecotone_keyspace::ShardId;
use ecotone_keyspace::gate::CommitGate;
use ecotone_policy::machine::{ModelReport, Parameters, WhenNoneInTime};
use ecotone_replication::Copies;
use ecotone_replication::service::Service as CopiesService;
use ecotone_resp::serve::Listening;
use ecotone_resp::service::Service;
use ecotone_types::DutyObserver;
use ecotone_types::units::{Bytes, Cores, Tables};
use parking_lot::{Condvar, Mutex};
use tracing::info;

use crate::addresses::{Addresses, Announced};
use crate::clients::Served;
use crate::colocated::Colocated;
use crate::copies;
use crate::error::{Error, Result};
use crate::host::Around;
use crate::host::copies::CopiesHandle;
use crate::host_memory::host_memory;
use crate::http::HttpServer;
use crate::http::health::Health;
use crate::http::status::{ClientParts, ServerStatus, ServingParts};
use crate::identity;
use crate::memory_shares::suit_clients;
use crate::monitor::{Doing, Monitor, Progress, ProgressSource, RecordSink, SamplerState};
use crate::open_files::share_with_stores;
use crate::options::{ClientOptions, ServeOptions, without_links};
use crate::power;
use crate::replica_reads::{Reads, ReadsHandle};
use crate::requests::Requests;
use crate::sample_base::{SampleBase, counting_from};
use crate::shards::{Follower, Shards, shards_of};
use crate::stores::{Copied, Opening, Stores};

/// Time between two samples: the papers' monitors take one a second.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Why the federation does not start, and what to do where there is something to do.
pub(crate) fn cannot_start(error: ecotone_cluster::Error) -> Error {
    match error {
        ecotone_cluster::Error::Listen { .. } => Error::Configuration(format!(
            "{error}; other servers are listened for there: choose another address (--listen or federation.listen), or end the process that has it"
        )),
        error => error.into(),
    }
}

/// What binds threads of this process to cores; nothing, where the kernel does not say which it has.
fn affinity() -> Arc<dyn CoreBinder> {
    match Affinity::of_this_process() {
        Ok(affinity) => Arc::new(affinity),
        Err(error) => {
            tracing::warn!(%error, "threads are not bound to cores: it is not known which this process may use");
            Arc::new(Unbound)
        }
    }
}

/// A running server.
pub struct Daemon {
    announced: Option<Arc<Announced>>,
    served: Option<Served>,
    stores: Arc<Stores>,
    shards: Arc<Shards>,
    /// Before what they follow and change.
    follower: Option<Follower>,
    copies: Option<Arc<Copies>>,
    /// Copies that clients read here.
    reads: Option<Arc<Reads>>,
    federation: Arc<Federation>,
    duties: Arc<ThreadDuties>,
    energy: Arc<EnergyThread>,
    sampler: Arc<SamplerState>,
    progress: Arc<Mutex<Option<ProgressSource>>>,
    colocated: Arc<Mutex<Colocated>>,
    sampler_thread: Option<Sampler>,
    begin: Mutex<Begin>,
    sample_base: Arc<Mutex<SampleBase>>,
    status: Arc<ServerStatus>,
    /// Last, so that it answers while the rest is dropped.
    http: Option<HttpServer>,
}

/// Counters when the workload began.
struct Begin {
    energy: Reading,
    counters: Counters,
    federation: FederationStatistics,
}

/// What a server has done and used.
#[derive(Debug, Clone)]
pub struct Sums {
    /// Energy and CPU by duty.
    pub energy: Reading,
    /// Time in which writes were slowed or stopped.
    pub stall_ms: f64,
    /// The length of each such time.
    pub stalls_ms: Vec<f64>,
    /// Most tables in L0, sampled once a second.
    pub l0_tables_max: u64,
    /// Compactions of these stores that ran elsewhere.
    pub offloaded: u64,
    /// Compactions of other stores that ran here.
    pub taken: u64,
    /// Offers of others that were declined, by reason.
    pub declined: BTreeMap<String, u64>,
    /// Compactions that ran here because an offload failed, by kind of error.
    pub fallbacks: BTreeMap<String, u64>,
    /// File bytes sent to other servers.
    pub network_bytes_sent: u64,
    /// File bytes received from other servers.
    pub network_bytes_received: u64,
    /// Threads that could not be put on their emulated core; a run with any is not valid.
    pub core_failures: u64,
}

impl Daemon {
    /// Starts the server: the stores are open and other servers can be reached when this returns.
    ///
    /// # Errors
    /// What is wrong with the options, the store's folder, the address or the emulated cores.
    pub fn start(mut options: ServeOptions, sink: Option<RecordSink>) -> Result<Daemon> {
        if options.cores == 0 {
            return Err(Error::Configuration("a server needs at least one core (--cores)".into()));
        }
        options.directory = without_links(&options.directory).map_err(|error| {
            Error::Configuration(format!("the folder {} cannot be found: {error}", options.directory.display()))
        })?;
        let status = Arc::new(ServerStatus::default());
        let http = match &options.http {
            Some(http) => HttpServer::start(http, status.clone())?,
            None => None,
        };
        if let Some(http) = &http {
            let addresses: Vec<String> = http.addresses().iter().map(ToString::to_string).collect();
            info!(http = addresses.join(", "), "metrics and health checks are answered");
        }
        let (model, binder): (PowerModel, Arc<dyn CoreBinder>) = match &options.emulated {
            Some(emulated) => (
                PowerModel::emulated(options.idle_watts, options.active_watts, emulated.speed)?
                    .with_p_states(emulated.table()?),
                Arc::new(CgroupCores::for_this_process(&emulated.cgroup)?),
            ),
            None => {
                let configured = PowerModel::hardware(options.idle_watts, options.active_watts)?;
                (machine_model(&options.machine_root, &configured), affinity())
            }
        };
        let meter = EnergyMeter::start(model)?;
        let duties = Arc::new(ThreadDuties::new(meter.clone(), binder.clone()));
        let sample_base = Arc::new(Mutex::new(SampleBase::default()));
        let sampler = Arc::new(SamplerState::new(&options, sink.map(|sink| counting_from(sample_base.clone(), sink))));

        let mut policy = Parameters { policy: options.policy, ..Parameters::default() };
        // Until the first flushes tell: a table of L0 holds one memtable.
        policy.rate.prior_input_bytes_per_table = Bytes(options.store.memtable_bytes);
        // ECO-KVS runs it at home when nobody ends in time. The stall then comes in any case, and
        // the server that ends soonest makes it shortest; at home it would last longest, and the
        // next job would begin in it.
        policy.when_none_in_time = WhenNoneInTime::FastestIfFaster;
        policy.stall_threshold_tables = Tables(f64::from(options.store.l0_slowdown_trigger));
        // The forecast counts tables in level 0. The memtable that fills and those that wait or are
        // being flushed are on their way when it is made, and arrive early in the compaction.
        let on_their_way = Tables(f64::from(options.store.memtable_count));
        policy.stall_margin_tables = on_their_way.min(policy.stall_threshold_tables * 0.5);
        let subcompactions = options.policy.max_subcompactions(Cores(f64::from(options.cores)));
        let worker_slots = options.worker_slots();
        let identity = identity::open(&options)?;
        let membership = identity.is_some().then(|| identity::membership_options(&options));
        // Copies are driven, and others may ask for them, once clients are served.
        let copies_service = CopiesService::new();
        let federation = Federation::start_with(
            Options {
                name: options.name.clone(),
                listen: options.listen,
                announce: options.announce.clone(),
                join: options.join.clone(),
                worker_directory: options.directory.join("worker"),
                policy,
                network_bytes_per_s: options.network_bytes_per_s,
                identity,
                membership,
                limits: Limits { worker_slots, ..Limits::default() },
                steps: None,
            },
            duties.clone(),
            sampler.clone(),
            |routes| copies_service.add_to(routes),
        );
        let federation = Arc::new(federation.map_err(cannot_start)?);

        // A shard may have been given to another server while this one was off.
        let known = federation.membership().map(|membership| {
            membership.catch_up();
            membership.known()
        });
        if let Some(known) = &known {
            options.shards = shards_of(known);
        }
        options.store.max_subcompactions = options.max_subcompactions.unwrap_or(subcompactions);
        // Clients take a value whose time is over for gone, whether it is there or not.
        let rank_bytes = match options.clients {
            Some(_) => suit_clients(&mut options.store, options.fits_memtables, host_memory()),
            None => 0,
        };
        let clients = options.clients.as_ref().map_or(Ok(0), ClientOptions::max_clients)?;
        let directories: Vec<_> = options.shards.iter().map(|shard| shard.directory(&options.directory)).collect();
        let max_tables = share_with_stores(&mut options.store, &directories, clients)?;
        let opening = Opening {
            directory: options.directory.clone(),
            settings: options.store.clone(),
            has_clients: options.clients.is_some(),
            local_slots: LocalSlots::new(Limits::default().fallback_slots),
            federation: federation.clone(),
            duties: duties.clone(),
            note_stall: Arc::new({
                let sampler = sampler.clone();
                move |is_stalled| sampler.note_stall(is_stalled)
            }),
            max_tables,
        };
        let energy = power::start(&options, &meter, &binder, federation.membership())?;
        let stores = Stores::open(opening, &options.shards)?;
        let shards = Shards::new(stores.clone(), energy.clone());
        if let Some(opened) = &options.opened {
            opened();
        }
        federation.set_load_source(sampler.clone());

        let progress = Arc::new(Mutex::new(None));
        let colocated = Arc::new(Mutex::new(Colocated::new(binder)));
        let monitor = Monitor::new(
            sampler.clone(),
            stores.clone(),
            energy.clone(),
            federation.clone(),
            progress.clone(),
            colocated.clone(),
            &options,
        );
        let begin = Mutex::new(Begin {
            energy: energy.reading(),
            counters: stores.counters(),
            federation: federation.statistics(),
        });
        // The opening may have taken long.
        sampler.does(Instant::now(), Doing::Sampling);
        let sampler_thread = Sampler::start(monitor)?;
        info!(directory = %options.directory.display(), shards = options.shards.len(), "the stores are open");
        let copies_handle = CopiesHandle::default();
        let reads_handle = ReadsHandle::default();
        sampler.watch_copies(&copies_handle, &reads_handle);
        let served = match options.clients.take() {
            Some(clients) => {
                let around = Around {
                    stores: stores.clone(),
                    known: known.clone(),
                    federation: federation.clone(),
                    energy: energy.clone(),
                    sampler: sampler.clone(),
                    name: federation.name().clone(),
                    join: options.join.clone(),
                    policy: options.policy,
                    worker_slots,
                    copies: copies_handle.clone(),
                    reads: reads_handle.clone(),
                };
                let served = Served::start(clients, around, options.store.durability, duties.clone())?;
                served.service().keyspace.ranks().limit_to(rank_bytes);
                // Weak: the sampler state outlives the service, which holds the store.
                let service = Arc::downgrade(served.service());
                sampler.count_commands(Box::new(move || {
                    service.upgrade().map_or(0, |service| service.statistics.commands.load(Ordering::Relaxed))
                }));
                let service = Arc::downgrade(served.service());
                sampler.count_keys(Box::new(move || Some(service.upgrade()?.keyspace.cached_key_count()?.keys)));
                Some(served)
            }
            None => None,
        };
        let follower = match (&served, federation.membership(), &known) {
            (Some(served), Some(membership), Some(known)) => {
                shards.serve(served.service());
                Some(Follower::start(membership.clone(), known, shards.clone(), served.service(), served.viewer())?)
            }
            (Some(served), ..) => {
                shards.serve(served.service());
                None
            }
            _ => None,
        };
        let copies = match (&served, federation.membership()) {
            (Some(_), Some(membership)) => {
                let parts =
                    copies::HostParts { stores: stores.clone(), shards: shards.clone(), duties: duties.clone() };
                let durability = options.store.durability;
                let copies = copies::start(membership, federation.runtime(), parts, durability, &copies_service)?;
                let copies = Arc::new(copies);
                copies_handle.drives(&copies);
                federation.set_held_copies(copies::held_by(&copies));
                Some(copies)
            }
            _ => None,
        };
        let reads = match (&served, federation.membership()) {
            (Some(served), Some(membership)) => {
                let (service, membership) = (served.service(), membership.clone());
                let memory = service.keyspace.memory().clone();
                let reads = Reads::new(stores.clone(), membership, copies_handle.clone(), duties.clone(), memory);
                reads_handle.serves(&reads);
                let _ = service.replicas.set(reads.clone());
                Some(reads)
            }
            _ => None,
        };
        status.serves(ServingParts {
            sampler: sampler.clone(),
            clients: served.as_ref().map(|served| ClientParts {
                service: Arc::downgrade(served.service()),
                event_loops: served.heartbeats().clone(),
            }),
            name: federation.name().as_str().to_owned(),
            role: if options.join.is_some() { "member" } else { "coordinator" },
            policy: options.policy.name(),
            worker_slots,
            stall_threshold_tables: options.store.l0_slowdown_trigger,
            lost_log_lines: options.lost_log_lines,
        });
        let http_addresses = http.as_ref().map(HttpServer::addresses).unwrap_or_default();
        let addresses = Addresses::of_this_process(served.as_ref().map(Served::listening), http_addresses);
        let announced = Arc::new(Announced::new(&options.directory, addresses));
        sampler_thread.announces(&announced);
        Ok(Daemon {
            announced: Some(announced),
            served,
            stores,
            shards,
            follower,
            copies,
            reads,
            federation,
            duties,
            energy,
            sampler,
            progress,
            colocated,
            sampler_thread: Some(sampler_thread),
            begin,
            sample_base,
            status,
            http,
        })
    }

    /// The stores, in the order in which they were opened.
    pub fn stores(&self) -> Vec<Arc<Store>> {
        self.stores.list()
    }

    /// The store, where there is exactly one: what a workload inside the server works with.
    pub fn only_store(&self) -> Option<Arc<Store>> {
        self.stores.only()
    }

    /// What all stores have done since they were opened.
    pub fn counters(&self) -> Counters {
        self.stores.counters()
    }

    /// Holds one shard more, which may have copies on other servers and of which this one has the
    /// primary from now on: its store is made, or opened where there is one already, and clients are
    /// served. Nobody may have been told before that these slots are here, and nobody else may have
    /// them. All that changes in the folder of the store is told to `tap`, from the first change on,
    /// and nothing is left in logs that were there before; the segments that it begins have numbers
    /// from `least_segment` on; replies wait for `gate`. May wait for requests under way.
    ///
    /// # Errors
    ///
    /// The store cannot be opened; slots that another shard here has. Nothing has changed then, but
    /// for what an opening changes in the folder; nobody has that any more.
    pub fn become_primary(
        &self,
        id: ShardId,
        slots: &[(u16, u16)],
        tap: Arc<dyn WriteTap>,
        least_segment: u32,
        gate: Arc<dyn CommitGate>,
    ) -> Result<()> {
        // Nobody says who has copies: jobs of it send all their input.
        self.shards.become_primary(id, slots, Copied { tap, least_segment, gate, primary: None })
    }

    /// Holds a shard no more, whatever is in it; clients should have been told before. At once no
    /// write to it is let through, then its store is closed, as soon as those have ended who read it.
    /// Its folder stays as it is, and nobody here touches it any more.
    ///
    /// # Errors
    ///
    /// A shard that is not held. [`ShardError::InUse`](ecotone_keyspace::ShardError) where somebody
    /// reads it for too long: no write is let through all the same, and this is to be called again.
    /// What the store could not make durable, when it is closed then.
    pub fn resign(&self, id: ShardId) -> Result<()> {
        self.shards.resign(id)
    }

    /// Where clients are listened for, if they are.
    pub fn listening(&self) -> Option<&Listening> {
        self.served.as_ref().map(Served::listening)
    }

    /// What clients are served, if they are.
    pub fn service(&self) -> Option<&Arc<Service>> {
        self.served.as_ref().map(Served::service)
    }

    /// Where metrics and health checks are answered; nowhere if there are none.
    pub fn http_addresses(&self) -> &[SocketAddr] {
        self.http.as_ref().map(HttpServer::addresses).unwrap_or_default()
    }

    /// Whether it lives and is ready.
    pub fn health(&self) -> Health {
        Health { status: self.status.clone() }
    }

    /// This server's name in the federation.
    pub fn name(&self) -> &str {
        self.federation.name().as_str()
    }

    /// Where other servers reach this one.
    pub fn address(&self) -> &str {
        self.federation.address()
    }

    /// What threads of a workload call when they begin and end.
    pub fn duties(&self) -> Arc<dyn DutyObserver> {
        self.duties.clone()
    }

    /// A workload begins: records are timed from here, and its progress is taken from `source`.
    pub fn begin_workload(&self, source: impl Fn() -> Progress + Send + Sync + 'static) {
        let (energy, counters) = (self.energy.reading(), self.stores.counters());
        *self.sample_base.lock() = SampleBase {
            stall_ms: counters.stall_us() as f64 / 1e3,
            delayed_ms: counters.writer_stall_us as f64 / 1e3,
            energy_joules: energy.total_joules,
        };
        *self.begin.lock() = Begin { energy, counters, federation: self.federation.statistics() };
        *self.progress.lock() = Some(Arc::new(source));
        self.sampler.begin();
        if let Some(sampler) = &self.sampler_thread {
            sampler.align();
        }
    }

    /// As [`begin_workload`](Self::begin_workload), where the workload is what clients ask for from
    /// now on. Returns what they have asked for before; `None` where no clients are served.
    pub fn begin_requests(&self) -> Option<Requests> {
        let service = Arc::clone(self.service()?);
        let before = Requests::of(&service);
        self.begin_workload(move || Requests::of(&service).since(&before).progress());
        Some(before)
    }

    /// What clients have asked for since the start; `None` where none are served.
    pub fn requests(&self) -> Option<Requests> {
        self.service().map(|service| Requests::of(service))
    }

    /// Makes `count` co-located threads compete for this server's cores.
    ///
    /// # Errors
    /// [`Error::Thread`] if the system refuses a thread.
    pub fn set_colocated(&self, count: usize) -> Result<()> {
        self.colocated.lock().set(count)
    }

    /// What the server has done and used since [`begin_workload`](Self::begin_workload), or since
    /// its start.
    pub fn sums(&self) -> Sums {
        let begin = self.begin.lock();
        let counters = self.stores.counters();
        let federation = self.federation.statistics();
        let (stalls_ms, l0_tables_max) = self.sampler.stalls();
        let less = |now: &std::collections::HashMap<&'static str, u64>, then: &std::collections::HashMap<_, u64>| {
            now.iter()
                .map(|(reason, count)| ((*reason).to_owned(), count - then.get(reason).unwrap_or(&0)))
                .filter(|(_, count)| *count > 0)
                .collect()
        };
        Sums {
            energy: self.energy.reading().since(&begin.energy),
            stall_ms: counters.stall_us().saturating_sub(begin.counters.stall_us()) as f64 / 1e3,
            stalls_ms,
            l0_tables_max,
            offloaded: federation.offloaded - begin.federation.offloaded,
            taken: federation.taken - begin.federation.taken,
            declined: less(&federation.declined, &begin.federation.declined),
            fallbacks: less(&federation.fallbacks, &begin.federation.fallbacks),
            network_bytes_sent: federation.network_bytes_sent - begin.federation.network_bytes_sent,
            network_bytes_received: federation.network_bytes_received - begin.federation.network_bytes_received,
            core_failures: self.duties.binder().failures(),
        }
    }

    /// What the models know.
    pub fn models(&self) -> ModelReport {
        self.federation.models()
    }

    /// Stops the server and closes its stores.
    ///
    /// # Errors
    /// [`Error::Store`] if a store could not be closed cleanly; nothing acknowledged is lost by
    /// it.
    pub fn stop(mut self) -> Result<()> {
        self.status.stops();
        self.announced.take();
        if let Some(copies) = self.copies.as_ref() {
            copies.leave();
        }
        self.follower.take();
        // Their stores are closed, while clients are told that they are not here.
        if let Some(reads) = self.reads.take() {
            reads.stop();
        }
        self.copies.take();
        if let Some(served) = self.served.take() {
            served.stop();
        }
        self.sampler_thread.take();
        *self.progress.lock() = None;
        let closed = self.stores.close();
        // Last, so that the end is fast, too.
        self.energy.stop();
        closed
    }
}

/// The sampling thread. Stopped when dropped.
struct Sampler {
    shared: Arc<SamplerShared>,
    thread: Option<JoinHandle<()>>,
}

struct SamplerShared {
    stop: AtomicBool,
    /// What is tried again each second until it is written.
    announced: OnceLock<Weak<Announced>>,
    next: Mutex<Instant>,
    notifier: Condvar,
}

impl Sampler {
    fn start(mut monitor: Monitor) -> Result<Sampler> {
        let shared = Arc::new(SamplerShared {
            stop: AtomicBool::new(false),
            announced: OnceLock::new(),
            next: Mutex::new(Instant::now()),
            notifier: Condvar::new(),
        });
        let inside = shared.clone();
        let thread = std::thread::Builder::new()
            .name("ecotone-monitor".into())
            .spawn(move || {
                loop {
                    {
                        let mut next = inside.next.lock();
                        while !inside.stop.load(Ordering::Acquire) && Instant::now() < *next {
                            let until = *next;
                            inside.notifier.wait_until(&mut next, until);
                        }
                        // From the planned time on, so that samples do not drift; a late one is not
                        // made up for.
                        *next = (*next + SAMPLE_INTERVAL).max(Instant::now());
                    }
                    if inside.stop.load(Ordering::Acquire) {
                        return;
                    }
                    monitor.sample();
                    if let Some(announced) = inside.announced.get().and_then(Weak::upgrade) {
                        announced.try_again();
                    }
                }
            })
            .map_err(|source| Error::Thread { what: "the monitor", source })?;
        Ok(Sampler { shared, thread: Some(thread) })
    }

    /// Has the file of addresses written once it can be.
    fn announces(&self, announced: &Arc<Announced>) {
        let _ = self.shared.announced.set(Arc::downgrade(announced));
    }

    /// Samples now and then every second.
    fn align(&self) {
        *self.shared.next.lock() = Instant::now();
        self.shared.notifier.notify_all();
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Under the lock, so that the thread is either before it reads the flag or in its wait.
        drop(self.shared.next.lock());
        self.shared.notifier.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the monitor's thread panicked");
        }
    }
}
