//! The kinds of kernels, with their parameters.
#![allow(unsafe_code, reason = "launches kernels: each block says why it is sound")]

use std::{ffi::c_void, ptr::from_mut};

use tch::TchError;

use super::{
    Kernels, Source,
    driver::Function,
    layout::{Decision, Grads, Noise, Table},
    torch,
};

/// Threads of a block that runs alone.
const ONE: u32 = 1;

fn argument<T>(value: &mut T) -> *mut c_void {
    from_mut(value).cast()
}

impl Kernels {
    fn blocks(&self, function: Function, table: &Table) -> u32 {
        self.all_blocks(function).min(table.chunk_count).max(ONE)
    }

    /// Launches a kernel that looks at gradients.
    ///
    /// # Safety
    ///
    /// All pointers are 0 or lead to memory of the device as `layout.cuh` says, which nobody else
    /// uses outside of libtorch's current stream.
    pub(super) unsafe fn look(
        &self,
        source: &Source,
        name: &str,
        grads: &mut Grads,
        table: &mut Table,
        decision: &mut Decision,
        mut state: u64,
    ) -> Result<(), TchError> {
        let function = self.function(source, name).map_err(torch)?;
        let blocks = self.blocks(function, table);
        let arguments =
            &mut [argument(grads), argument(table), argument(decision), argument(&mut state)];
        // SAFETY: these are the types of the kernel's parameters; the caller answers for the rest.
        unsafe { self.launch(function, blocks, arguments) }
    }
}

/// What an update is told besides its tensors.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) settings: u64,
    pub(super) progress: u64,
    pub(super) state: u64,
    pub(super) noise: Noise,
}

impl Kernels {
    /// Launches an update.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    pub(super) unsafe fn update(
        &self,
        source: &Source,
        name: &str,
        grads: &mut Grads,
        table: &mut Table,
        step: &mut Step,
    ) -> Result<(), TchError> {
        let function = self.function(source, name).map_err(torch)?;
        let blocks = self.blocks(function, table);
        let arguments = &mut [
            argument(grads),
            argument(table),
            argument(&mut step.settings),
            argument(&mut step.progress),
            argument(&mut step.state),
            argument(&mut step.noise),
        ];
        // SAFETY: these are the types of the kernel's parameters; the caller answers for the rest.
        unsafe { self.launch(function, blocks, arguments) }
    }
}

impl Kernels {
    /// Launches a kernel that makes one figure of those of several chunks, as one block if `alone`.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    pub(super) unsafe fn summarise(
        &self,
        source: &Source,
        name: &str,
        table: &mut Table,
        mut state: u64,
        alone: bool,
    ) -> Result<(), TchError> {
        let function = self.function(source, name).map_err(torch)?;
        let blocks = if alone { ONE } else { self.blocks(function, table) };
        let arguments = &mut [argument(table), argument(&mut state)];
        // SAFETY: these are the types of the kernel's parameters; the caller answers for the rest.
        unsafe { self.launch(function, blocks, arguments) }
    }
}
