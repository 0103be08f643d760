//! How far saving or loading has come.

use std::fmt;

/// How far saving or loading has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes that were written or read.
    pub bytes: u64,
    /// Bytes that there are to write or read. Loading reads a file twice: to check it, then to copy
    /// it.
    pub total: u64,
}

/// Counts bytes and tells the user.
#[derive(Default)]
pub(super) struct Meter<'f> {
    tell: Option<Box<dyn FnMut(Progress) + 'f>>,
    bytes: u64,
    total: u64,
}

impl<'f> Meter<'f> {
    pub(super) fn tell(&mut self, tell: impl FnMut(Progress) + 'f) {
        self.tell = Some(Box::new(tell));
    }

    pub(super) fn start(&mut self, total: u64) {
        (self.bytes, self.total) = (0, total);
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some(tell) = &mut self.tell {
            tell(Progress { bytes: self.bytes, total: self.total });
        }
    }
}

impl fmt::Debug for Meter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("bytes", &self.bytes).field("total", &self.total).finish()
    }
}
