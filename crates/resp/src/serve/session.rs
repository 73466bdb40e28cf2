//! Serves clients: receives requests, has the event loop execute them, and sends the replies.
//!
//! A session ends when the client closes it, when the client is killed, when the server stops, or
//! after a timeout, which is logged: [`Limits::idle`](crate::service::Limits) without a request,
//! [`Limits::send`](crate::service::Limits) without taking any byte of a reply. Changed limits hold
//! for clients that wait already.
//!
//! Threads: that of the event loop.

use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use super::connection::{Connection, Ended};
use super::control::ControlReceiver;
use super::event_loop::EventLoop;
use super::liveness::BackgroundTasks;
use super::rebalancing::{Arrival, ConnectionSlot};
use super::stream::{ClientStream, DetachedStream, Socket};
use crate::answer::Answer;
use crate::client::{Awaited, Client, ClientInfo, Then};
use crate::client_events::ClientEvent;

/// Time for clients to receive their last replies when the server stops.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Time for closing a connection, which TLS announces.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);

/// How often within the time that a client may take nothing its progress is checked.
const LOOKS_WHILE_SENDING: u32 = 4;

/// At least so often it is checked: limits may have changed.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// The reply to a client that waits for something when the server stops.
const STOPS: &str = "ERR the server stops before this is done; ask again once it is back";

/// The first byte of a TLS handshake, which begins no request.
const TLS_HANDSHAKE: u8 = 0x16;

/// Serves the clients that are assigned to `event_loop` until the server stops. `background` has
/// the tasks that its thread has begun.
pub(super) async fn serve_event_loop(
    event_loop: Rc<EventLoop>,
    mut background: BackgroundTasks,
    mut inbox: mpsc::UnboundedReceiver<Arrival>,
    mut control: ControlReceiver,
) {
    background.begin(event_loop.clone().commit_groups());
    background.begin(event_loop.clone().sync_groups());
    background.begin(event_loop.let_go_replies());
    background.begin(event_loop.begin_reads());
    background.begin(event_loop.end_reads());
    let mut clients = JoinSet::new();
    loop {
        let arrival = tokio::select! {
            biased;
            () = control.stops() => break,
            Some(ended) = clients.join_next() => {
                tell_of_panic(&ended);
                continue;
            }
            never = background.watch() => match never {},
            arrival = inbox.recv() => arrival,
        };
        let Some(arrival) = arrival else { break };
        let (event_loop, control) = (event_loop.clone(), control.clone());
        clients.spawn_local(async move { serve_arrival(&event_loop, arrival, control).await });
    }
    // The clients that are left have no request, or were answered, and are not waited for.
    drop(inbox);
    let all_gone = async {
        while let Some(ended) = clients.join_next().await {
            tell_of_panic(&ended);
        }
    };
    let all_gone = tokio::select! {
        biased;
        gone = timeout(STOP_WITHIN, all_gone) => gone,
        never = background.watch() => match never {},
    };
    if all_gone.is_err() {
        tracing::warn!(
            clients = event_loop.clients.load(Ordering::Relaxed),
            "clients did not take their last replies in time"
        );
    }
}

fn tell_of_panic(ended: &Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a client is disconnected");
    }
}

async fn serve_arrival(event_loop: &Rc<EventLoop>, arrival: Arrival, control: ControlReceiver) {
    let Arrival { stream, mut slot, mut connection } = arrival;
    let left = match stream {
        DetachedStream::Tcp(stream) => match TcpStream::from_std(stream) {
            Ok(stream) => serve(event_loop, Socket::of(stream), &mut slot, &mut connection, control).await,
            Err(error) => Err(error),
        },
        DetachedStream::Unix(stream) => match UnixStream::from_std(stream) {
            Ok(stream) => serve(event_loop, Socket::of(stream), &mut slot, &mut connection, control).await,
            Err(error) => Err(error),
        },
        DetachedStream::Tls(mut stream) => match stream.get_mut().0.move_here() {
            Ok(()) => serve(event_loop, stream, &mut slot, &mut connection, control).await,
            Err(error) => Err(error),
        },
    };
    if let Ok(Some((to, stream))) = left {
        return event_loop.balancer.send(to, Arrival { stream, slot, connection });
    }
    if let Some(mut connection) = connection {
        connection.client.unwatch(&event_loop.service.keyspace);
    }
    if let Err(error) = left {
        tracing::warn!(client = %slot.info.address, %error, "a connection could not be served");
    }
}

/// Serves one client until its session ends, or it is to move to another event loop: which, and by
/// what it is reached then. It comes from another one if there is a `connection`; there is one
/// afterwards.
async fn serve<S: ClientStream>(
    event_loop: &Rc<EventLoop>,
    mut stream: S,
    slot: &mut ConnectionSlot,
    kept: &mut Option<Box<Connection>>,
    mut control: ControlReceiver,
) -> io::Result<Option<(usize, DetachedStream)>> {
    let service = &event_loop.service;
    let info = &slot.info.clone();
    info.descriptor.store(stream.descriptor(), Ordering::Relaxed);
    let mut has_spoken = kept.is_some();
    let mut connection = kept.take().unwrap_or_else(|| {
        let limits = service.limits.read().clone();
        let client = Client::new(info.clone(), limits.password.is_none());
        Box::new(Connection::new(client, limits))
    });
    // They may have changed while it moved, and the signal of this event loop has seen that.
    connection.take_limits(service);
    let statistics = &service.statistics;
    // Kept from one wait to the next: registering for both anew is dear beside a short request.
    let mut interrupted = pin!(interruption(info, control.clone()));
    // How long it has been idle already, under limits that have changed since.
    let mut idled = Duration::ZERO;
    // Set when it does not take its replies.
    let mut is_lost = false;
    while !info.is_killed.load(Ordering::Acquire) {
        if control.has_changed() {
            // Before what is received: a client that always sends would never be stopped.
            if control.see() {
                break;
            }
            connection.take_limits(service);
            interrupted.set(interruption(info, control.clone()));
        }
        let idle = connection.limits().idle;
        let received = tokio::select! {
            biased;
            received = receive(event_loop, &mut stream, &mut connection, idle.map(|idle| idle.saturating_sub(idled))) => received,
            () = &mut interrupted => {
                // The beginning of the loop finds out why.
                idled = info.idle();
                continue;
            }
        };
        idled = Duration::ZERO;
        let bytes = match received {
            Received::Bytes(bytes) => bytes,
            Received::End => break,
            Received::Nothing => {
                if let Some(others) = event_loop.service.client_events.note(ClientEvent::IdleTimeout) {
                    tracing::info!(
                        client = %info.address, limit = "idle_timeout_s", limit_s = idle.unwrap_or_default().as_secs_f64(), others,
                        "a client sent nothing for so long; it is disconnected"
                    );
                }
                break;
            }
        };
        let mut began = Instant::now();
        info.is_active(began);
        statistics.reads.fetch_add(1, Ordering::Relaxed);
        statistics.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut closes = false;
        if !std::mem::replace(&mut has_spoken, true) && connection.next_byte() == Some(TLS_HANDSHAKE) {
            if let Some(others) = event_loop.service.client_events.note(ClientEvent::UnexpectedTls) {
                tracing::info!(client = %info.address, others, "a client speaks TLS at an address without; it is disconnected");
            }
            connection.refuse(service, b"ERR Protocol error: TLS is not spoken at this address");
            closes = true;
        }
        loop {
            let mut ended = Ended::Closes;
            if !closes {
                (connection, ended) = watched(event_loop.round(connection, began), &stream, info).await;
                statistics.responses.record(began.elapsed());
            }
            closes |= ended == Ended::Closes || info.is_killed.load(Ordering::Acquire);
            // All whole requests that came before are executed, unless the round is full.
            let waited_bytes = connection.waiting_bytes();
            let then = std::mem::take(&mut connection.client.then);
            if matches!(then, Then::Rest(_) | Then::Follow) {
                // Throttling may take long.
                let before = connection.take_before_rest();
                is_lost = send(event_loop, &mut stream, before, &mut connection).await.is_err();
                let mut awaited = connection.take_awaited();
                if !is_lost {
                    tokio::select! {
                        outcome = rested(then, awaited.as_mut()) => match outcome {
                            Ok(None) => {}
                            Ok(Some(answer)) => connection.answer_after_rest(service, &answer),
                            Err(why) => connection.fail_after_rest(service, &why),
                        },
                        () = until_gone(event_loop, &mut stream, &mut connection) => is_lost = true,
                        () = info.until_killed() => is_lost = true,
                        () = control.stops() => {
                            closes = true;
                            if then == Then::Follow {
                                connection.fail_after_rest(service, STOPS);
                            }
                        }
                    }
                }
            }
            if !is_lost && !connection.reply.is_empty() {
                let replies = connection.take_replies();
                is_lost = send(event_loop, &mut stream, replies, &mut connection).await.is_err();
            }
            closes |= is_lost;
            let goes_on = ended == Ended::Full || connection.waiting_bytes() > waited_bytes;
            if closes || !goes_on || control.has_stopped() {
                break;
            }
            // After all others that have sent something.
            tokio::task::yield_now().await;
            // The time for which it was idle does not include that of sending.
            began = Instant::now();
        }
        if closes {
            break;
        }
        // A stop of the server is announced here.
        if !control.has_changed()
            && let Some(to) = event_loop.balancer.rebalanced_to(slot)
        {
            *kept = Some(connection);
            return Ok(Some((to, stream.leave()?)));
        }
    }
    *kept = Some(connection);
    if !is_lost {
        // TLS announces the end.
        let _ = timeout(GOODBYE_WITHIN, stream.shutdown()).await;
    }
    Ok(None)
}

/// Waits for as long as the client is throttled, or until what it waits for is over: what is
/// replied instead of what the command has replied.
async fn rested(then: Then, awaited: Option<&mut Awaited>) -> Result<Option<Answer>, String> {
    match (then, awaited) {
        (Then::Rest(rest), _) => sleep(rest).await,
        (Then::Follow, Some(awaited)) => return awaited.over().await,
        _ => {}
    }
    Ok(None)
}

/// Waits until the client is killed, or `signal` has a notification that it has not seen.
async fn interruption(info: &ClientInfo, mut control: ControlReceiver) {
    tokio::select! {
        () = info.until_killed() => {}
        () = control.changed() => {}
    }
}

/// Receives what comes, as far as limits allow, until the client goes.
async fn until_gone<S: ClientStream>(event_loop: &EventLoop, stream: &mut S, connection: &mut Connection) {
    loop {
        let is_here = std::future::poll_fn(|context| {
            if !connection.may_receive_more(&event_loop.service) {
                return Poll::Ready(true);
            }
            if poll_receive_more(event_loop, stream, connection, context) { Poll::Pending } else { Poll::Ready(false) }
        });
        if !is_here.await || stream.cancel_reason().is_some() {
            return;
        }
        // The end of the stream is behind bytes that must not be read, so it is not reported.
        sleep(LOOK_FOR_END_EVERY).await;
    }
}

/// How often it is checked whether a client is still there that may send no more.
const LOOK_FOR_END_EVERY: Duration = Duration::from_secs(1);

/// The same of one whose requests are executed on another thread: the first check comes as late, so
/// nearly all are executed without one.
const LOOK_FOR_WAITING_EVERY: Duration = Duration::from_millis(100);

/// The outcome of a `round`. Where another thread goes on with it, that one is notified when the
/// client no longer waits.
async fn watched<T, S: ClientStream>(round: impl Future<Output = T>, stream: &S, info: &ClientInfo) -> T {
    let mut round = pin!(round);
    info.is_blocking.store(false, Ordering::Relaxed);
    let until_moved = std::future::poll_fn(|context| match round.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending if info.is_blocking.load(Ordering::Relaxed) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    });
    if let Some(outcome) = until_moved.await {
        return outcome;
    }
    loop {
        tokio::select! {
            biased;
            outcome = &mut round => return outcome,
            () = sleep(LOOK_FOR_WAITING_EVERY) => {}
        }
        if let Some(lost) = stream.cancel_reason() {
            info.cancellation.cancel(lost);
        }
    }
}

/// The outcome of waiting for a client.
enum Received {
    /// So many bytes came.
    Bytes(usize),
    /// It has closed the connection.
    End,
    /// Timeout.
    Nothing,
}

/// Receives more bytes of a client, within `idle`.
async fn receive<S: ClientStream>(
    event_loop: &EventLoop,
    stream: &mut S,
    connection: &mut Connection,
    idle: Option<Duration>,
) -> Received {
    let reading = std::future::poll_fn(|context| {
        let mut scratch = event_loop.scratch.borrow_mut();
        let mut into = ReadBuf::new(&mut scratch);
        match ready!(Pin::new(&mut *stream).poll_read(context, &mut into)) {
            Ok(()) if !into.filled().is_empty() => {
                connection.receive(into.filled());
                Poll::Ready(Received::Bytes(into.filled().len()))
            }
            // The end, or an error, which ends it as well.
            _ => Poll::Ready(Received::End),
        }
    });
    match idle {
        None => reading.await,
        Some(idle) => timeout(idle, reading).await.unwrap_or(Received::Nothing),
    }
}

/// A client was killed, has closed the connection, or took nothing for too long.
struct SendFailed;

/// Sends all of `replies`. The timeout begins anew whenever the client has taken something. What it
/// sends meanwhile is received, as far as limits allow: a client that sends everything before it
/// reads must not wait for ever.
async fn send<S: ClientStream>(
    event_loop: &EventLoop,
    stream: &mut S,
    replies: Vec<u8>,
    connection: &mut Connection,
) -> Result<(), SendFailed> {
    let info = connection.client.info.clone();
    send_bytes(event_loop, stream, &replies, &info, connection).await?;
    event_loop.service.statistics.writes.fetch_add(1, Ordering::Relaxed);
    event_loop.service.statistics.bytes_out.fetch_add(replies.len() as u64, Ordering::Relaxed);
    connection.sent(&event_loop.service, replies);
    Ok(())
}

async fn send_bytes<S: ClientStream>(
    event_loop: &EventLoop,
    stream: &mut S,
    bytes: &[u8],
    info: &ClientInfo,
    connection: &mut Connection,
) -> Result<(), SendFailed> {
    let mut limit = connection.limits().send;
    let mut written = 0;
    // Most clients take everything at once: that is tried before anything else is set up.
    let at_once = std::future::poll_fn(|context| Poll::Ready(poll_send(stream, bytes, &mut written, context))).await;
    if let Poll::Ready(sent) = at_once {
        return sent;
    }
    let mut receives = true;
    let mut took_nothing_for = Duration::ZERO;
    loop {
        let look_after = (limit / LOOKS_WHILE_SENDING).min(LOOKS_EVERY);
        let taken_before = stream.progress().taken_bytes;
        tokio::select! {
            biased;
            sent = std::future::poll_fn(|context| {
                let sent = poll_send(stream, bytes, &mut written, context);
                if sent.is_pending() && receives && connection.may_receive_more(&event_loop.service) {
                    receives = poll_receive_more(event_loop, stream, connection, context);
                }
                sent
            }) => return sent,
            () = info.until_killed() => return Err(SendFailed),
            () = sleep(look_after) => {}
        }
        if stream.progress().taken_bytes > taken_before {
            took_nothing_for = Duration::ZERO;
        } else {
            took_nothing_for += look_after;
        }
        limit = event_loop.service.limits.read().send;
        if took_nothing_for >= limit {
            if let Some(others) = event_loop.service.client_events.note(ClientEvent::SendTimeout) {
                tracing::info!(
                    client = %info.address, limit = "send_timeout_s", limit_s = limit.as_secs_f64(), owed_bytes = bytes.len() - written, others,
                    "a client took nothing of its replies for so long; it is disconnected"
                );
            }
            return Err(SendFailed);
        }
        stream.progress().look_closely();
    }
}

/// Receives once more, and wakes the task if something came, since more may. False at the end,
/// which the next receive meets again.
fn poll_receive_more<S: ClientStream>(
    event_loop: &EventLoop,
    stream: &mut S,
    connection: &mut Connection,
    context: &mut Context<'_>,
) -> bool {
    let mut scratch = event_loop.scratch.borrow_mut();
    let mut into = ReadBuf::new(&mut scratch);
    match Pin::new(stream).poll_read(context, &mut into) {
        Poll::Pending => true,
        Poll::Ready(Ok(())) if !into.filled().is_empty() => {
            let bytes = into.filled();
            connection.receive_more(&event_loop.service, bytes);
            connection.client.info.is_active(Instant::now());
            event_loop.service.statistics.reads.fetch_add(1, Ordering::Relaxed);
            event_loop.service.statistics.bytes_in.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            context.waker().wake_by_ref();
            true
        }
        Poll::Ready(_) => false,
    }
}

/// Sends the rest of `bytes` behind the first `written`.
fn poll_send<S: ClientStream>(
    stream: &mut S,
    bytes: &[u8],
    written: &mut usize,
    context: &mut Context<'_>,
) -> Poll<Result<(), SendFailed>> {
    while *written < bytes.len() {
        match ready!(Pin::new(&mut *stream).poll_write(context, &bytes[*written..])) {
            Ok(0) | Err(_) => return Poll::Ready(Err(SendFailed)),
            Ok(more) => *written += more,
        }
    }
    // TLS keeps back what the socket did not take.
    Pin::new(stream).poll_flush(context).map_err(|_| SendFailed)
}
