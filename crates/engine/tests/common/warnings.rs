//! What the stores of this process log as warnings and errors.

use std::fmt::{Debug, Write};
use std::path::Path;
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static BEGIN: Once = Once::new();
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// From now on they are kept.
pub fn listen() {
    BEGIN.call_once(|| tracing::subscriber::set_global_default(Listener).unwrap());
}

/// All so far that name something in `directory`, each as its fields with their names.
pub fn about(directory: &Path) -> Vec<String> {
    let directory = directory.display().to_string();
    SAID.lock().unwrap().iter().filter(|said| said.contains(&directory)).cloned().collect()
}

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        SAID.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}: {value:?} ").unwrap();
    }
}
