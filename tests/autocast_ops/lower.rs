//! Operations that run in the region's 16-bit type.

use super::case::{Case, NONE, cases, u};

pub const LOWER: &[Case] = cases![Lower;
    "_addmm_activation", [u([5]), u([3, 4]), u([4, 5])],
        |t| t[0].internal_addmm_activation(&t[1], &t[2], false);
    "_convolution", [u([2, 3, 5]), u([4, 3, 2])],
        |t| t[0].internal_convolution(&t[1], NONE, [1], [0], [1], false, [0], 1, false, false,
            true, true);
    "_convolution.deprecated", [u([2, 3, 5]), u([4, 3, 2])],
        |t| t[0].internal_convolution_deprecated(&t[1], NONE, [1], [0], [1], false, [0], 1, false,
            false, true);
    "_native_multi_head_attention", [u([2, 3, 8]), u([24, 8]), u([24]), u([8, 8]), u([8])],
        |t| tch::no_grad(|| tch::Tensor::internal_native_multi_head_attention(&t[0], &t[0], &t[0],
            8, 2, &t[1], &t[2], &t[3], &t[4], NONE, true, true, None));
    "addbmm", [u([3, 5]), u([2, 3, 4]), u([2, 4, 5])], |t| t[0].addbmm(&t[1], &t[2]);
    "addmm", [u([3, 5]), u([3, 4]), u([4, 5])], |t| t[0].addmm(&t[1], &t[2]);
    "addmv", [u([3]), u([3, 4]), u([4])], |t| t[0].addmv(&t[1], &t[2]);
    "addr", [u([3, 4]), u([3]), u([4])], |t| t[0].addr(&t[1], &t[2]);
    "baddbmm", [u([2, 3, 5]), u([2, 3, 4]), u([2, 4, 5])], |t| t[0].baddbmm(&t[1], &t[2], 1.0, 1.0);
    "bmm", [u([2, 3, 4]), u([2, 4, 5])], |t| t[0].bmm(&t[1]);
    "chain_matmul", [u([3, 4]), u([4, 5]), u([5, 2])], |t| tch::Tensor::chain_matmul(t);
    "conv1d", [u([2, 3, 5]), u([4, 3, 2]), u([4])],
        |t| t[0].conv1d(&t[1], Some(&t[2]), [1], [0], [1], 1);
    "conv1d.padding", [u([2, 3, 5]), u([4, 3, 3]), u([4])],
        |t| t[0].conv1d_padding(&t[1], Some(&t[2]), [1], "same", [1], 1);
    "conv2d", [u([2, 3, 5, 5]), u([4, 3, 2, 2]), u([4])],
        |t| t[0].conv2d(&t[1], Some(&t[2]), [1, 1], [0, 0], [1, 1], 1);
    "conv2d.padding", [u([2, 3, 5, 5]), u([4, 3, 3, 3]), u([4])],
        |t| t[0].conv2d_padding(&t[1], Some(&t[2]), [1, 1], "same", [1, 1], 1);
    "conv3d", [u([2, 3, 4, 4, 4]), u([4, 3, 2, 2, 2]), u([4])],
        |t| t[0].conv3d(&t[1], Some(&t[2]), [1, 1, 1], [0, 0, 0], [1, 1, 1], 1);
    "conv3d.padding", [u([2, 3, 4, 4, 4]), u([4, 3, 3, 3, 3]), u([4])],
        |t| t[0].conv3d_padding(&t[1], Some(&t[2]), [1, 1, 1], "same", [1, 1, 1], 1);
    "conv_tbc", [u([5, 2, 3]), u([2, 3, 4]), u([4])], |t| t[0].conv_tbc(&t[1], &t[2], 0);
    "conv_transpose1d", [u([2, 3, 5]), u([3, 4, 2]), u([4])],
        |t| t[0].conv_transpose1d(&t[1], Some(&t[2]), [1], [0], [0], 1, [1]);
    "conv_transpose2d.input", [u([2, 3, 5, 5]), u([3, 4, 2, 2]), u([4])],
        |t| t[0].conv_transpose2d(&t[1], Some(&t[2]), [1, 1], [0, 0], [0, 0], 1, [1, 1]);
    "conv_transpose3d.input", [u([2, 3, 4, 4, 4]), u([3, 4, 2, 2, 2]), u([4])],
        |t| t[0].conv_transpose3d(&t[1], Some(&t[2]), [1, 1, 1], [0, 0, 0], [0, 0, 0], 1, [1, 1,
            1]);
    "convolution", [u([2, 3, 5]), u([4, 3, 2]), u([4])],
        |t| t[0].convolution(&t[1], Some(&t[2]), [1], [0], [1], false, [0], 1);
    "einsum", [u([3, 4]), u([4, 5])], |t| tch::Tensor::einsum("ij,jk->ik", t, None::<i64>);
    "gru_cell", [u([2, 3]), u([2, 4]), u([12, 3]), u([12, 4]), u([12]), u([12])],
        |t| t[0].gru_cell(&t[1], &t[2], &t[3], Some(&t[4]), Some(&t[5]));
    "linalg_multi_dot", [u([3, 4]), u([4, 5]), u([5, 2])], |t| tch::Tensor::linalg_multi_dot(t);
    "linalg_vecdot", [u([3, 4]), u([3, 4])], |t| tch::Tensor::linalg_vecdot(&t[0], &t[1], -1);
    "linear", [u([3, 4]), u([5, 4]), u([5])], |t| t[0].linear(&t[1], Some(&t[2]));
    "lstm_cell", [u([2, 3]), u([2, 4]), u([2, 4]), u([16, 3]), u([16, 4]), u([16]), u([16])],
        |t| t[0].lstm_cell(&[&t[1], &t[2]], &t[3], &t[4], Some(&t[5]), Some(&t[6]));
    "matmul", [u([2, 3, 4]), u([4, 5])], |t| t[0].matmul(&t[1]);
    "mm", [u([3, 4]), u([4, 5])], |t| t[0].mm(&t[1]);
    "mv", [u([3, 4]), u([4])], |t| t[0].mv(&t[1]);
    "prelu", [u([3, 4]) - 0.5, u([4])], |t| t[0].prelu(&t[1]);
    "rnn_relu_cell", [u([2, 3]), u([2, 4]), u([4, 3]), u([4, 4]), u([4]), u([4])],
        |t| t[0].rnn_relu_cell(&t[1], &t[2], &t[3], Some(&t[4]), Some(&t[5]));
    "rnn_tanh_cell", [u([2, 3]), u([2, 4]), u([4, 3]), u([4, 4]), u([4]), u([4])],
        |t| t[0].rnn_tanh_cell(&t[1], &t[2], &t[3], Some(&t[4]), Some(&t[5]));
    "scaled_dot_product_attention", [u([1, 2, 4, 8]), u([1, 2, 4, 8]), u([1, 2, 4, 8])],
        |t| tch::Tensor::scaled_dot_product_attention(&t[0], &t[1], &t[2], NONE, 0.0, true, None,
            false);
];

/// Recurrent layers: on CUDA cuDNN's, which has an entry of its own beside the lists.
pub const RECURRENT: &[Case] = cases![Lower;
    "lstm.input", [u([2, 5, 3]), u([1, 2, 4]), u([1, 2, 4]), u([16, 3]), u([16, 4]), u([16]), u([16])],
        |t| t[0].lstm(&t[1..3], &t[3..], true, 1, 0.0, true, false, true);
    "gru.input", [u([2, 5, 3]), u([1, 2, 4]), u([12, 3]), u([12, 4]), u([12]), u([12])],
        |t| t[0].gru(&t[1], &t[2..], true, 1, 0.0, true, false, true);
    "rnn_tanh.input", [u([2, 5, 3]), u([1, 2, 4]), u([4, 3]), u([4, 4]), u([4]), u([4])],
        |t| t[0].rnn_tanh(&t[1], &t[2..], true, 1, 0.0, true, false, true);
    "rnn_relu.input", [u([2, 5, 3]), u([1, 2, 4]), u([4, 3]), u([4, 4]), u([4]), u([4])],
        |t| t[0].rnn_relu(&t[1], &t[2..], true, 1, 0.0, true, false, true);
    "lstm.data", [u([4, 3]), u([1, 2, 4]), u([1, 2, 4]), u([16, 3]), u([16, 4]), u([16]), u([16])],
        |t| tch::Tensor::lstm_data(&t[0], &super::case::ids(&[2, 1, 1]), &t[1..3], &t[3..], true,
            1, 0.0, true, false);
    "gru.data", [u([4, 3]), u([1, 2, 4]), u([12, 3]), u([12, 4]), u([12]), u([12])],
        |t| tch::Tensor::gru_data(&t[0], &super::case::ids(&[2, 1, 1]), &t[1], &t[2..], true, 1,
            0.0, true, false);
    "rnn_tanh.data", [u([4, 3]), u([1, 2, 4]), u([4, 3]), u([4, 4]), u([4]), u([4])],
        |t| tch::Tensor::rnn_tanh_data(&t[0], &super::case::ids(&[2, 1, 1]), &t[1], &t[2..], true,
            1, 0.0, true, false);
    "rnn_relu.data", [u([4, 3]), u([1, 2, 4]), u([4, 3]), u([4, 4]), u([4]), u([4])],
        |t| tch::Tensor::rnn_relu_data(&t[0], &super::case::ids(&[2, 1, 1]), &t[1], &t[2..], true,
            1, 0.0, true, false);
];
