//! Tensors, the tables that describe them, and launches on them.

use std::{
    ffi::c_void,
    ptr::{from_mut, from_ref},
};

use tch_amp_emulator::{
    Betas, Chunk, Decision, Grads, Kernels, MAX_TENSORS, Noise, Partial, Progress, State, Table,
    Tensor,
};

use super::{Array, Checked, Kind, Random};

/// Elements of a chunk: few, so that tensors have several.
const CHUNK: usize = 2048;

/// What is tested.
pub struct Subject<'a> {
    pub kernels: &'a Kernels,
    /// Plants a fault in the tables.
    pub spoil: fn(&mut [Tensor], &mut [Chunk]),
}

impl<'a> Subject<'a> {
    pub fn healthy(kernels: &'a Kernels) -> Self {
        Self { kernels, spoil: |_, _| () }
    }

    /// The kernels and tables as they are.
    pub fn linked() -> Self {
        Self::healthy(Kernels::linked())
    }
}

/// A tensor with all that kernels may touch.
pub struct Item {
    pub grad: Option<Array>,
    pub weight: Array,
    pub copy: Array,
    pub state: [Array; 2],
    pub noise: u32,
    pub group: u32,
}

impl Item {
    fn intact(&self) -> Checked {
        let others = [&self.weight, &self.copy, &self.state[0], &self.state[1]];
        self.grad.iter().chain(others).try_for_each(Array::intact)
    }
}

/// What is launched on.
pub struct Tensors {
    pub items: Vec<Item>,
    pub progress: Vec<Progress>,
    pub betas: Vec<Betas>,
    pub decision: Decision,
    pub state: State,
    partials: Vec<Partial>,
}

impl Tensors {
    /// Tensors of all sizes, one without a gradient.
    pub fn random(random: &mut Random, grad: Kind, weight: Kind, copy: Kind) -> Self {
        let sizes = [0, 1, 7, 2048, 5003, 300, 4096];
        let mut items = Vec::new();
        for (number, len) in sizes.into_iter().enumerate() {
            let mut array = |kind| {
                let values: Vec<_> = (0..len).map(|_| random.value()).collect();
                let skip = if random.below(3) == 0 { random.below(8) as usize } else { 0 };
                Array::new(kind, skip, &values)
            };
            let (grad, weight, copy) = (array(grad), array(weight), array(copy));
            // A second moment is not negative.
            let (first, second) = (array(Kind::F32), array(Kind::F32));
            let squares: Vec<_> = second.values().iter().map(|v| v * v).collect();
            let second = second.with(&squares);
            items.push(Item {
                grad: Some(grad).filter(|_| number != 5),
                weight,
                copy,
                state: [first, second],
                noise: number as u32 * 77,
                group: number as u32 % 2,
            });
        }
        let progress = vec![Progress::default(); items.len()];
        let betas = vec![Betas { beta: [0.9, 0.999] }, Betas { beta: [0.5, 0.75] }];
        let decision = Decision {
            growth_factor: 2.0,
            backoff_factor: 0.5,
            min_scale: 1.0,
            max_scale: 65536.0,
            max_norm: f64::INFINITY,
            growth_interval: 2000,
            hysteresis: 1,
            dynamic: 1,
            scaled: 1,
            decide_here: 1,
            ..Decision::default()
        };
        let state =
            State { scale: 4.0, inverse_scale: 0.25, overflows_left: 1, ..State::default() };
        Self { items, progress, betas, decision, state, partials: Vec::new() }
    }

    /// Launches a kernel that looks at gradients.
    pub fn look(&mut self, subject: &Subject, kernel: &str, order: u64) -> Checked {
        self.launch(subject, kernel, order, |grads, table, decision, state| {
            vec![grads, table, decision, state]
        })
    }

    /// Launches an update with the settings of the groups.
    pub fn update<S>(
        &mut self,
        subject: &Subject,
        kernel: &str,
        settings: &[S],
        mut noise: Noise,
        order: u64,
    ) -> Checked {
        let mut settings_at = from_ref(&settings[0]) as u64;
        let mut progress_at = self.progress.as_mut_ptr() as u64;
        self.launch(subject, kernel, order, |grads, table, _, state| {
            let settings = from_mut(&mut settings_at).cast();
            let progress = from_mut(&mut progress_at).cast();
            vec![grads, table, settings, progress, state, from_mut(&mut noise).cast()]
        })
    }

    /// Launches a kernel that is told of no gradients.
    pub fn figures(&mut self, subject: &Subject, kernel: &str, order: u64) -> Checked {
        self.launch(subject, kernel, order, |_, table, _, state| vec![table, state])
    }

    fn launch(
        &mut self,
        subject: &Subject,
        kernel: &str,
        order: u64,
        arguments: impl FnOnce(*mut c_void, *mut c_void, *mut c_void, *mut c_void) -> Vec<*mut c_void>,
    ) -> Checked {
        let mut grads = Box::new(Grads { pointer: [0; MAX_TENSORS] });
        let (mut tensors, mut chunks) = (Vec::new(), Vec::new());
        for (number, item) in self.items.iter_mut().enumerate() {
            grads.pointer[number] = item.grad.as_mut().map_or(0, Array::address);
            let elements = item.weight.len as u64;
            for offset in (0..elements).step_by(CHUNK) {
                chunks.push(Chunk { offset, tensor: number as u32, reserved: 0 });
            }
            tensors.push(Tensor {
                weight: item.weight.address(),
                copy: item.copy.address(),
                state: item.state.each_mut().map(Array::address),
                elements,
                noise: item.noise,
                group: item.group,
            });
        }
        (subject.spoil)(&mut tensors, &mut chunks);
        // Without room for more.
        let (tensors, chunks) = (tensors.into_boxed_slice(), chunks.into_boxed_slice());
        self.partials.resize(chunks.len(), Partial::default());
        let mut table = Table {
            tensors: tensors.as_ptr() as u64,
            chunks: chunks.as_ptr() as u64,
            partials: self.partials.as_mut_ptr() as u64,
            chunk_elements: CHUNK as u64,
            chunk_count: chunks.len() as u32,
            tensor_count: tensors.len() as u32,
        };
        self.decision.progress = self.progress.as_mut_ptr() as u64;
        self.decision.betas = self.betas.as_ptr() as u64;
        let mut state_at = from_mut(&mut self.state) as u64;
        let mut arguments = arguments(
            from_mut(&mut *grads).cast(),
            from_mut(&mut table).cast(),
            from_mut(&mut self.decision).cast(),
            from_mut(&mut state_at).cast(),
        );
        let blocks = if ["decide_step", "lamb_grad_norm"].contains(&kernel) { 1 } else { 3 };
        // SAFETY: the arguments are those of the kernel, and all they point to outlives the launch.
        unsafe { subject.kernels.launch(kernel, blocks, &mut arguments, order) }?;
        self.items.iter().try_for_each(Item::intact)
    }
}
