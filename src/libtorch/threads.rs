//! libtorch's own threads.

use std::{
    any::Any,
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::ffi;

/// Portions that each thread takes, on average, so that none waits long for another.
const PORTIONS: usize = 64;

/// Calls `work` once for each item, on as many threads as libtorch uses for one operation
/// (`tch::set_num_threads`). In which order, and on which thread, is not said.
///
/// # Panics
///
/// When `work` panics, once all threads have stopped.
pub(crate) fn for_each<T: Send>(items: &mut [T], work: impl Fn(&mut T) + Sync) {
    let threads = tch::get_num_threads().max(1) as usize;
    if threads == 1 || items.len() <= 1 {
        return items.iter_mut().for_each(work);
    }
    let portion = (items.len() / (threads * PORTIONS)).max(1);
    let task = Task {
        items: items.as_mut_ptr(),
        len: items.len(),
        portion,
        next: AtomicUsize::new(0),
        work: &work,
        panic: Mutex::new(None),
    };
    let context: *const Task<T, _> = &task;
    // SAFETY: libtorch calls `run` on its threads and waits for all of them before it returns, so
    // that `task` outlives them; `run` takes the context for what it is.
    let code = unsafe {
        ffi::torch_parallel_for(0, threads as i64, 1, run_of(&task), context.cast_mut().cast())
    };
    if code != 0 {
        // Items are handed out once each: those that are left, if any.
        task.run();
    }
    if let Some(panic) = task.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}

/// Items that several threads work on.
struct Task<'w, T, W> {
    items: *mut T,
    len: usize,
    /// Items that a thread takes at once.
    portion: usize,
    /// The first item that no thread has taken.
    next: AtomicUsize,
    work: &'w W,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl<T: Send, W: Fn(&mut T) + Sync> Task<'_, T, W> {
    /// Works until all items are taken.
    fn run(&self) {
        let worked = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let start = self.next.fetch_add(self.portion, Ordering::Relaxed);
                if start >= self.len {
                    break;
                }
                for index in start..self.len.min(start + self.portion) {
                    // SAFETY: the index is that of an item, and the counter gives each index to one
                    // thread only, so that nobody else refers to this item.
                    (self.work)(unsafe { &mut *self.items.add(index) });
                }
            }
        }));
        if let Err(panic) = worked {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
    }
}

/// The function that libtorch calls for a task.
fn run_of<T: Send, W: Fn(&mut T) + Sync>(_: &Task<'_, T, W>) -> ffi::ParallelFunc {
    extern "C" fn run<T: Send, W: Fn(&mut T) + Sync>(begin: i64, end: i64, context: *mut c_void) {
        // SAFETY: the context is the task that `for_each` passed, which it keeps until all calls
        // have returned; it is shared between threads, all of which only read it.
        let task = unsafe { &*context.cast::<Task<'_, T, W>>() };
        (begin..end).for_each(|_| task.run());
    }
    run::<T, W>
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::{collections::HashSet, thread};

    use super::*;

    #[test]
    fn each_item_is_worked_on_once() {
        for len in [0, 1, 2, 3, 1000, 12_345] {
            let mut items = vec![0u32; len];
            for_each(&mut items, |item| *item += 1);
            assert!(items.iter().all(|&item| item == 1), "{len}");
        }
    }

    #[test]
    fn the_work_is_shared_by_as_many_threads_as_libtorch_has() {
        let seen = Mutex::new(HashSet::new());
        for_each(&mut [(); 200], |()| {
            seen.lock().unwrap().insert(thread::current().id());
            thread::sleep(std::time::Duration::from_millis(1));
        });
        assert_eq!(seen.into_inner().unwrap().len(), tch::get_num_threads() as usize);
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let mut items: Vec<_> = (0..1000).collect();
        let stop = |item: &mut i32| {
            if *item == 777 {
                resume_unwind(Box::new("stop"));
            }
        };
        let caught = catch_unwind(AssertUnwindSafe(|| for_each(&mut items, stop)));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"stop"));
        for_each(&mut items, |item| *item += 1);
        assert_eq!(items[0], 1);
    }
}
