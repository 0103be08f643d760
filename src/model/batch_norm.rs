//! Batch-norm layers, recognised by their variables: `tch` has no module tree.

use std::collections::{HashMap, HashSet};

use tch::Tensor;

/// The names of all tensors of batch-norm layers, `affine = false` included.
///
/// A path is a batch-norm layer when `running_mean` and `running_var` lie directly under it. Its
/// weight, bias and statistics belong together: libtorch wants them all in one type.
pub(super) fn names<'a>(variables: &[(&'a String, &Tensor)]) -> HashSet<&'a str> {
    let mut layers: HashMap<&str, Vec<Member<'a>>> = HashMap::new();
    for (name, tensor) in variables {
        let (path, leaf) = name.rsplit_once('.').unwrap_or(("", name));
        let member = Member { leaf: base(leaf), name, size: tensor.size() };
        layers.entry(path).or_default().push(member);
    }
    layers.values().flat_map(|members| batch_norm(members)).collect()
}

/// A variable directly under some path.
struct Member<'a> {
    leaf: &'a str,
    name: &'a str,
    size: Vec<i64>,
}

/// The batch-norm tensors among the variables under one path. Other layers on the same path are
/// told apart by shape.
fn batch_norm<'a>(members: &[Member<'a>]) -> Vec<&'a str> {
    let has = |leaf: &str, size: &[i64]| members.iter().any(|m| m.leaf == leaf && m.size == size);
    let belongs = |m: &&Member<'_>| {
        matches!(m.leaf, "weight" | "bias" | "running_mean" | "running_var")
            && has("running_mean", &m.size)
            && has("running_var", &m.size)
    };
    members.iter().filter(belongs).map(|m| m.name).collect()
}

/// A variable's own name, without the `__3` that `tch` appends when a name is taken.
fn base(leaf: &str) -> &str {
    match leaf.rsplit_once("__") {
        Some((base, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => leaf,
    }
}
