//! Operations that run in the widest type among their arguments.

use super::case::{Case, NONE, cases, ids, u};

pub const PROMOTE: &[Case] = cases![Promote;
    "addcdiv", [u([3, 4]), u([3, 4]), u([3, 4])], |t| t[0].addcdiv(&t[1], &t[2]);
    "addcmul", [u([3, 4]), u([3, 4]), u([3, 4])], |t| t[0].addcmul(&t[1], &t[2]);
    "atan2", [u([3, 4]), u([3, 4])], |t| t[0].atan2(&t[1]);
    "bilinear", [u([4, 3]), u([4, 5]), u([2, 3, 5])],
        |t| tch::Tensor::bilinear(&t[0], &t[1], &t[2], NONE);
    "cross", [u([4, 3]), u([4, 3])], |t| t[0].cross(&t[1], 1);
    "dot", [u([5]), u([5])], |t| t[0].dot(&t[1]);
    "index_put", [u([5]), u([2])], |t| t[0].index_put(&[Some(ids(&[3, 1]))], &t[1], false);
    "scatter_add", [u([5]), u([3])], |t| t[0].scatter_add(0, &ids(&[0, 1, 1]), &t[1]);
    "tensordot", [u([3, 4]), u([4, 5])], |t| t[0].tensordot(&t[1], [1], [0]);
    "vdot", [u([5]), u([5])], |t| t[0].vdot(&t[1]);
];

/// Those that libtorch's own CPU lists have.
pub const PROMOTE_BY_LIBTORCH: &[Case] = cases![Promote;
    "cat", [u([3, 4]), u([2, 4])], |t| tch::Tensor::cat(t, 0);
    "index_copy", [u([5, 4]), u([2, 4])], |t| t[0].index_copy(0, &ids(&[3, 1]), &t[1]);
    "stack", [u([3, 4]), u([3, 4])], |t| tch::Tensor::stack(t, 0);
];

/// Those in no list of libtorch's, which refuse arguments of different types without a region.
pub const PROMOTE_BY_US: &[Case] = cases![Promote;
    "index_add", [u([5]), u([2])], |t| t[0].index_add(0, &ids(&[3, 1]), &t[1]);
    "masked_scatter", [u([5]), u([5])],
        |t| t[0].masked_scatter(&ids(&[1, 0, 1, 0, 0]).to_kind(tch::Kind::Bool), &t[1]);
    "scatter.src", [u([5]), u([2])], |t| t[0].scatter(0, &ids(&[3, 1]), &t[1]);
    "scatter.reduce", [u([5]), u([2])], |t| t[0].scatter_reduce(0, &ids(&[3, 1]), &t[1], "add");
];

/// Operations that change their first argument in place, and cast the second to its type.
pub const INTO_FIRST: &[Case] = cases![Promote;
    "index_add_", [u([5]), u([2])], |t| t[0].copy().index_add_(0, &ids(&[3, 1]), &t[1]);
    "index_copy_", [u([5]), u([2])], |t| t[0].copy().index_copy_(0, &ids(&[3, 1]), &t[1]);
    "index_put_", [u([5]), u([2])], |t| t[0].copy().index_put_(&[Some(ids(&[3, 1]))], &t[1], false);
    "masked_scatter_", [u([5]), u([5])],
        |t| t[0].copy().masked_scatter_(&ids(&[1, 0, 1, 0, 0]).to_kind(tch::Kind::Bool), &t[1]);
    "scatter_.src", [u([5]), u([2])], |t| t[0].copy().scatter_(0, &ids(&[3, 1]), &t[1]);
    "scatter_add_", [u([5]), u([2])], |t| t[0].copy().scatter_add_(0, &ids(&[3, 1]), &t[1]);
    "scatter_.reduce", [u([5]), u([2])],
        |t| t[0].copy().scatter_reduce_(0, &ids(&[3, 1]), &t[1], "add");
];
