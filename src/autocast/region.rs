//! The guard, and the regions that are open on a thread.

use std::{cell::RefCell, marker::PhantomData};

use static_assertions::assert_not_impl_any;
use tch::{Device, Kind};

use super::AutocastError;
use crate::libtorch::{self, AutocastDevice, AutocastState};

/// A region in which operations are cast, or one in which they are not, as long as the guard lives.
///
/// Made by [`enter`](super::enter) and [`disable`](super::disable). When it is dropped, also by a
/// panic, autocast on this thread is as it was before. Guards may be dropped in any order: the
/// innermost region of those that live is in force. A guard stays on its thread, and other threads
/// do not notice it.
#[must_use = "the region ends when its guard is dropped: bind it, `let _region = …`"]
#[derive(Debug)]
pub struct AutocastRegion {
    id: u64,
    _on_this_thread: PhantomData<*mut ()>,
}

/// A region that has been checked and can be entered any number of times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionKind {
    device: AutocastDevice,
    state: AutocastState,
}

impl RegionKind {
    /// Checks device and type, and has libtorch's lists for the device completed.
    ///
    /// # Errors
    ///
    /// When the device has no autocast, `kind` is not a 16-bit type, or libtorch refuses the lists.
    pub(crate) fn new(device: Device, kind: Kind) -> Result<Self, AutocastError> {
        let autocast_device = autocast_device(device)?;
        let state = AutocastState::o1(kind).ok_or(AutocastError::Kind { kind })?;
        libtorch::register_o1_lists(autocast_device)
            .map_err(|source| AutocastError::Lists { device, source })?;
        Ok(Self { device: autocast_device, state })
    }

    /// Enters the region on this thread.
    pub(crate) fn enter(self) -> AutocastRegion {
        AutocastRegion::begin(self.device, self.state)
    }
}

impl AutocastRegion {
    /// Enters a region without casts.
    pub(super) fn disabled(device: Device) -> Result<Self, AutocastError> {
        let device = autocast_device(device)?;
        Ok(Self::begin(device, libtorch::autocast(device).disabled()))
    }

    fn begin(device: AutocastDevice, state: AutocastState) -> Self {
        let id = OPEN.with_borrow_mut(|open| {
            let id = open.last().map_or(0, |last| last.id + 1);
            let before = libtorch::autocast(device);
            open.push(Open { id, device, before, cache_before: libtorch::cast_cache() });
            id
        });
        libtorch::nest_autocast();
        libtorch::set_autocast(device, state);
        libtorch::set_cast_cache(false);
        Self { id, _on_this_thread: PhantomData }
    }
}

impl Drop for AutocastRegion {
    fn drop(&mut self) {
        // Without the list, the thread is at its end and its autocast state gone.
        let _ = OPEN.try_with(|open| end(&mut open.borrow_mut(), self.id));
    }
}

assert_not_impl_any!(AutocastRegion: Send, Sync);

/// What is to be restored when a region ends.
#[derive(Debug)]
struct Open {
    id: u64,
    device: AutocastDevice,
    before: AutocastState,
    cache_before: bool,
}

thread_local! {
    /// The regions that this thread is in, the innermost last.
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
}

/// Ends a region. If others were entered after it and live on, the next of them inherits what there
/// is to restore.
fn end(open: &mut Vec<Open>, id: u64) {
    let Some(index) = open.iter().position(|region| region.id == id) else { return };
    let ended = open.remove(index);
    match open[index..].iter_mut().find(|region| region.device == ended.device) {
        Some(next) => next.before = ended.before,
        None => libtorch::set_autocast(ended.device, ended.before),
    }
    match open.get_mut(index) {
        Some(next) => next.cache_before = ended.cache_before,
        None => libtorch::set_cast_cache(ended.cache_before),
    }
    libtorch::unnest_autocast();
}

/// The 16-bit type of the region that is in force on a device.
pub(super) fn open(device: Device) -> Option<Kind> {
    autocast_device(device).ok().and_then(|device| libtorch::autocast(device).o1_kind())
}

/// Suspends the casts of all devices that a region is in force on.
pub(super) fn suspend() -> Vec<AutocastRegion> {
    let devices = [AutocastDevice::Cpu, AutocastDevice::Cuda, AutocastDevice::Mps].into_iter();
    let states = devices.map(|device| (device, libtorch::autocast(device)));
    let in_force = states.filter(|(_, state)| state.o1_kind().is_some());
    in_force.map(|(device, state)| AutocastRegion::begin(device, state.disabled())).collect()
}

fn autocast_device(device: Device) -> Result<AutocastDevice, AutocastError> {
    match device {
        Device::Cpu => Ok(AutocastDevice::Cpu),
        Device::Cuda(_) => Ok(AutocastDevice::Cuda),
        Device::Mps => Ok(AutocastDevice::Mps),
        Device::Vulkan => Err(AutocastError::Device { device }),
    }
}
