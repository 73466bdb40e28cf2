//! A duty that ends with what it was begun for.

use std::marker::PhantomData;
use std::sync::Arc;

use ecotone_types::{Duty, DutyObserver};

/// A duty of the calling thread that ends when this is dropped, also by a panic.
pub(crate) struct Scope(Option<Arc<dyn DutyObserver>>, PhantomData<*const ()>);

impl Scope {
    pub(crate) fn begin(duties: Option<Arc<dyn DutyObserver>>, duty: Duty) -> Scope {
        if let Some(duties) = &duties {
            duties.begin(duty);
        }
        Scope(duties, PhantomData)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(duties) = &self.0 {
            duties.end();
        }
    }
}
