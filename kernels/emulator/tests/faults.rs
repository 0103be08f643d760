//! Plants faults in the kernels and their tables, and sees that the checks find each.

mod common;

use common::{Fault, Subject, check_all, compile};
use tch_amp_emulator::{Chunk, Kernels, Tensor};

const UNEVEN: &str = "some threads do not come to a barrier";
const OUTSIDE: &str = "outside of an array";

/// What the checks say to kernels that are compiled with a fault.
fn checked(fault: Option<&Fault>) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let library = compile(folder.path(), fault, &["-O1"]);
    // SAFETY: a fault leaves the launch as it is.
    let kernels = unsafe { Kernels::open(&library) }.unwrap();
    check_all(&Subject::healthy(&kernels))
}

/// The checks find the fault, by what it does.
fn caught(file: &'static str, healthy: &'static str, faulty: &'static str, effect: &str) {
    let error = checked(Some(&Fault { file, healthy, faulty })).unwrap_err();
    assert!(error.contains(effect), "{error}");
}

fn caught_in_table(spoil: fn(&mut [Tensor], &mut [Chunk]), effect: &str) {
    let error = check_all(&Subject { spoil, ..Subject::linked() }).unwrap_err();
    assert!(error.contains(effect), "{error}");
}

/// Else all the others could pass for another reason.
#[test]
fn the_sources_as_they_are_pass() {
    checked(None).unwrap();
    check_all(&Subject::linked()).unwrap();
}

#[test]
fn a_sum_without_its_barrier() {
    let healthy = "warps[threadIdx.x / 32] = value;\n    __syncthreads();";
    caught("reduce.cuh", healthy, "warps[threadIdx.x / 32] = value;", "norm");
}

#[test]
fn a_minimum_without_its_barrier() {
    let healthy = "least = ~0u;\n    __syncthreads();";
    caught("reduce.cuh", healthy, "least = ~0u;", "what is found");
}

#[test]
fn settings_that_are_read_before_they_are_made() {
    let healthy = "            __syncthreads();\n            ready = chunk.tensor;";
    caught("update.cuh", healthy, "            ready = chunk.tensor;", "weight");
}

#[test]
fn settings_that_change_while_they_are_read() {
    let healthy = "            __syncthreads();\n            if (threadIdx.x == 0) {";
    caught("update.cuh", healthy, "            if (threadIdx.x == 0) {", "weight");
}

#[test]
fn a_chunk_with_an_element_too_many() {
    let healthy = "? left : table.chunk_elements;";
    caught("access.cuh", healthy, "? left + 1 : table.chunk_elements + 1;", "norm");
}

#[test]
fn a_write_behind_the_end() {
    caught(
        "update.cuh",
        "i < end; i += THREADS) one(i)",
        "i <= end; i += THREADS) one(i)",
        OUTSIDE,
    );
}

#[test]
fn a_vector_that_is_not_aligned() {
    let healthy = "aligned((u64)first % 16 == 0)";
    caught("access.cuh", healthy, "aligned(true)", "a vector is not aligned");
}

#[test]
fn a_result_that_is_not_aligned() {
    let healthy = "by_eight(grad.aligned && out.aligned,";
    caught("gradients.cu", healthy, "by_eight(grad.aligned,", "a vector is not aligned");
}

#[test]
fn a_tail_that_is_not_updated() {
    let healthy = "for (u64 i = whole + threadIdx.x; i < end; i += THREADS) one(i);";
    caught("update.cuh", healthy, "", "weight");
}

#[test]
fn a_tail_that_is_read_as_a_vector() {
    let healthy = "u64 whole = aligned ? end / WIDTH * WIDTH";
    caught("access.cuh", healthy, "u64 whole = aligned ? end", "norm");
}

#[test]
fn threads_without_elements_that_return() {
    let healthy = "    Seen seen;\n    by_eight<4>";
    let faulty = "    if (threadIdx.x * WIDTH >= end) return;\n    Seen seen;\n    by_eight<4>";
    caught("gradients.cu", healthy, faulty, UNEVEN);
}

#[test]
fn threads_without_chunks_that_return() {
    let healthy = "    squares = block_sum(squares);\n    first =";
    let faulty = "    if (threadIdx.x >= table.chunk_count) return;\n    squares = block_sum(squares);\n    first =";
    caught("decide.cuh", healthy, faulty, UNEVEN);
}

#[test]
fn a_decision_by_the_last_block_instead_of_the_last_to_come() {
    let healthy = "last = atomicAdd(&state->ticket, 1u) == gridDim.x - 1;";
    caught("check.cuh", healthy, "last = blockIdx.x == gridDim.x - 1;", "norm");
}

#[test]
fn a_decision_by_every_block() {
    let healthy = "last = atomicAdd(&state->ticket, 1u) == gridDim.x - 1;";
    caught("check.cuh", healthy, "last = true;", "good steps");
}

#[test]
fn tickets_that_are_not_taken_back() {
    caught("check.cuh", "if (threadIdx.x == 0) state->ticket = 0;", "", "ticket");
}

#[test]
fn a_skip_that_is_ignored() {
    caught("update.cuh", "if (step->skip) return;", "", "after a skipped step");
}

#[test]
fn random_bits_of_the_neighbour() {
    caught(
        "update.cuh",
        "(i & 1 ? word >> 16 : word)",
        "(i & 1 ? word : word >> 16)",
        "stochastic",
    );
}

#[test]
fn a_chunk_at_a_wrong_offset() {
    caught_in_table(|_, chunks| chunks[4].offset += 8, "norm");
}

#[test]
fn a_chunk_of_a_wrong_tensor() {
    caught_in_table(|_, chunks| chunks[2].tensor = 6, "norm");
}

#[test]
fn a_tensor_with_an_element_too_few() {
    caught_in_table(|tensors, _| tensors[4].elements -= 1, "element 5002");
}

#[test]
fn a_tensor_of_a_wrong_group() {
    caught_in_table(|tensors, _| tensors[4].group = 1, "adam");
}

#[test]
fn moments_in_each_others_place() {
    caught_in_table(|tensors, _| tensors[4].state.swap(0, 1), "adam");
}
