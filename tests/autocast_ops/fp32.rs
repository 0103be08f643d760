//! Operations that run in FP32, but for linear algebra and FFTs.

use tch::{Reduction::Mean, Tensor};

use super::case::{Case, NONE, cases, ids, u};

/// Functions, norms, sums and products.
pub const FP32: &[Case] = cases![Fp32;
    "acos", [u([3, 4])], |t| t[0].acos();
    "asin", [u([3, 4])], |t| t[0].asin();
    "cosh", [u([3, 4])], |t| t[0].cosh();
    "erfinv", [u([3, 4])], |t| t[0].erfinv();
    "exp", [u([3, 4])], |t| t[0].exp();
    "expm1", [u([3, 4])], |t| t[0].expm1();
    "log", [u([3, 4])], |t| t[0].log();
    "log10", [u([3, 4])], |t| t[0].log10();
    "log1p", [u([3, 4])], |t| t[0].log1p();
    "log2", [u([3, 4])], |t| t[0].log2();
    "logsumexp", [u([3, 4])], |t| t[0].logsumexp([1], false);
    "pow.Scalar", [u([3, 4])], |t| Tensor::pow_scalar(2.5, &t[0]);
    "pow.Tensor_Scalar", [u([3, 4])], |t| t[0].pow_tensor_scalar(2.5);
    "pow.Tensor_Tensor", [u([3, 4]), u([3, 4])], |t| t[0].pow(&t[1]);
    "reciprocal", [u([3, 4])], |t| t[0].reciprocal();
    "rsqrt", [u([3, 4])], |t| t[0].rsqrt();
    "sinh", [u([3, 4])], |t| t[0].sinh();
    "softplus", [u([3, 4])], |t| t[0].softplus();
    "tan", [u([3, 4])], |t| t[0].tan();

    "cdist", [u([3, 4]), u([5, 4])], |t| Tensor::cdist(&t[0], &t[1], 2.0, None);
    "cosine_similarity", [u([3, 4]), u([3, 4])],
        |t| Tensor::cosine_similarity(&t[0], &t[1], 1, 1e-8);
    "dist", [u([3, 4]), u([3, 4])], |t| t[0].dist(&t[1]);
    "frobenius_norm.dim", [u([3, 4])], |t| t[0].frobenius_norm([1], false);
    "group_norm", [u([2, 4, 3]), u([4]), u([4])],
        |t| t[0].group_norm(2, Some(&t[1]), Some(&t[2]), 1e-5, false);
    "layer_norm", [u([3, 4]), u([4]), u([4])],
        |t| t[0].layer_norm([4], Some(&t[1]), Some(&t[2]), 1e-5, false);
    "native_layer_norm", [u([3, 4]), u([4]), u([4])],
        |t| t[0].native_layer_norm([4], Some(&t[1]), Some(&t[2]), 1e-5);
    "norm.Scalar", [u([3, 4])], |t| t[0].norm();
    "norm.ScalarOpt_dim", [u([3, 4])], |t| t[0].norm_scalaropt_dim(3.0, [1], true);
    "nuclear_norm", [u([3, 4])], |t| t[0].nuclear_norm(false);
    "nuclear_norm.dim", [u([2, 3, 4])], |t| t[0].nuclear_norm_dim([1, 2], false);
    "pdist", [u([5, 3])], |t| t[0].pdist(2.0);
    "renorm", [u([3, 4])], |t| t[0].renorm(2.0, 0, 0.5);
    "rms_norm", [u([3, 4]), u([4])], |t| t[0].rms_norm([4], Some(&t[1]), 1e-5);

    "cumprod", [u([3, 4])], |t| t[0].cumprod(1, None);
    "cumsum", [u([3, 4])], |t| t[0].cumsum(1, None);
    "log_softmax.int", [u([3, 4])], |t| t[0].log_softmax(1, None);
    "prod", [u([3, 4])], |t| t[0].prod(None);
    "prod.dim_int", [u([3, 4])], |t| t[0].prod_dim_int(1, false, None);
    "softmax.int", [u([3, 4])], |t| t[0].softmax(1, None);
    "sum", [u([3, 4])], |t| t[0].sum(None);
    "sum.dim_IntList", [u([3, 4])], |t| t[0].sum_dim_intlist([1].as_slice(), false, None);
    "trace", [u([4, 4])], |t| t[0].trace();
];

pub const LOSSES: &[Case] = cases![Fp32;
    "binary_cross_entropy", [u([3, 4]), u([3, 4])],
        |t| t[0].binary_cross_entropy(&t[1], NONE, Mean);
    "binary_cross_entropy_with_logits", [u([3, 4]), u([3, 4])],
        |t| t[0].binary_cross_entropy_with_logits(&t[1], NONE, NONE, Mean);
    "cosine_embedding_loss", [u([3, 4]), u([3, 4])],
        |t| Tensor::cosine_embedding_loss(&t[0], &t[1], &ids(&[1, -1, 1]), 0.5, Mean);
    "cross_entropy_loss", [u([3, 4])],
        |t| t[0].cross_entropy_loss(&ids(&[0, 3, 1]), NONE, Mean, -100, 0.0);
    "ctc_loss.IntList", [u([6, 2, 4])],
        |t| Tensor::ctc_loss(&t[0], &ids(&[1, 2, 3, 1]).view([2, 2]), [6, 6], [2, 2], 0, Mean,
            false);
    "ctc_loss.Tensor", [u([6, 2, 4])],
        |t| Tensor::ctc_loss_tensor(&t[0], &ids(&[1, 2, 3, 1]).view([2, 2]), &ids(&[6, 6]),
            &ids(&[2, 2]), 0, Mean, false);
    "hinge_embedding_loss", [u([3]), u([3])], |t| t[0].hinge_embedding_loss(&t[1], 1.0, Mean);
    "huber_loss", [u([3, 4]), u([3, 4])], |t| t[0].huber_loss(&t[1], Mean, 0.2);
    "kl_div", [u([3, 4]), u([3, 4])], |t| t[0].kl_div(&t[1], Mean, false);
    "l1_loss", [u([3, 4]), u([3, 4])], |t| t[0].l1_loss(&t[1], Mean);
    "margin_ranking_loss", [u([3]), u([3]), u([3])],
        |t| Tensor::margin_ranking_loss(&t[0], &t[1], &t[2], 0.5, Mean);
    "mse_loss", [u([3, 4]), u([3, 4])], |t| t[0].mse_loss(&t[1], Mean);
    "multilabel_margin_loss", [u([2, 3])],
        |t| t[0].multilabel_margin_loss(&ids(&[0, 2, -1, 1, -1, -1]).view([2, 3]), Mean);
    "nll_loss", [u([3, 4])], |t| t[0].g_nll_loss(&ids(&[0, 3, 1]), NONE, Mean, -100);
    "nll_loss2d", [u([1, 3, 1, 2])],
        |t| t[0].nll_loss2d(&ids(&[0, 2]).view([1, 1, 2]), NONE, Mean, -100);
    "poisson_nll_loss", [u([3, 4]), u([3, 4])],
        |t| t[0].poisson_nll_loss(&t[1], true, false, 1e-8, Mean);
    "smooth_l1_loss", [u([3, 4]), u([3, 4])], |t| t[0].smooth_l1_loss(&t[1], Mean, 0.2);
    "soft_margin_loss", [u([3, 4]), u([3, 4])], |t| t[0].soft_margin_loss(&t[1].detach(), Mean);
    "triplet_margin_loss", [u([3, 4]), u([3, 4]), u([3, 4])],
        |t| Tensor::triplet_margin_loss(&t[0], &t[1], &t[2], 1.0, 2.0, 1e-6, false, Mean);
];

/// Interpolation, pooling and padding.
pub const IMAGES: &[Case] = cases![Fp32;
    "_grid_sampler_2d_cpu_fallback", [u([1, 2, 4, 4]), u([1, 3, 3, 2])],
        |t| t[0].internal_grid_sampler_2d_cpu_fallback(&t[1], 0, 0, false);
    "_upsample_bicubic2d_aa", [u([1, 2, 4, 4])],
        |t| t[0].internal_upsample_bicubic2d_aa([7, 7], false, None, None);
    "_upsample_bilinear2d_aa", [u([1, 2, 4, 4])],
        |t| t[0].internal_upsample_bilinear2d_aa([7, 7], false, None, None);
    "_upsample_nearest_exact1d", [u([1, 2, 4])],
        |t| t[0].internal_upsample_nearest_exact1d([7], None);
    "_upsample_nearest_exact2d", [u([1, 2, 4, 4])],
        |t| t[0].internal_upsample_nearest_exact2d([7, 7], None, None);
    "_upsample_nearest_exact3d", [u([1, 2, 4, 4, 4])],
        |t| t[0].internal_upsample_nearest_exact3d([7, 7, 7], None, None, None);
    "adaptive_avg_pool3d", [u([1, 2, 4, 4, 4])], |t| t[0].adaptive_avg_pool3d([2, 2, 2]);
    "adaptive_max_pool3d", [u([1, 2, 4, 4, 4])], |t| t[0].adaptive_max_pool3d([2, 2, 2]);
    "avg_pool3d", [u([1, 2, 4, 4, 4])],
        |t| t[0].avg_pool3d([2, 2, 2], [2, 2, 2], [0, 0, 0], false, true, None);
    "fake_quantize_per_tensor_affine", [u([3, 4])],
        |t| t[0].fake_quantize_per_tensor_affine(0.01, 0, 0, 255);
    "fractional_max_pool2d", [u([1, 2, 6, 6]), u([1, 2, 2])],
        |t| t[0].fractional_max_pool2d([2, 2], [3, 3], &t[1].detach());
    "fractional_max_pool3d", [u([1, 2, 6, 6, 6]), u([1, 2, 3])],
        |t| t[0].fractional_max_pool3d([2, 2, 2], [3, 3, 3], &t[1].detach());
    "grid_sampler", [u([1, 2, 4, 4]), u([1, 3, 3, 2])], |t| t[0].grid_sampler(&t[1], 0, 0, false);
    "grid_sampler_2d", [u([1, 2, 4, 4]), u([1, 3, 3, 2])],
        |t| t[0].grid_sampler_2d(&t[1], 0, 0, false);
    "grid_sampler_3d", [u([1, 2, 4, 4, 4]), u([1, 3, 3, 3, 3])],
        |t| t[0].grid_sampler_3d(&t[1], 0, 0, false);
    "max_pool3d", [u([1, 2, 4, 4, 4])],
        |t| t[0].max_pool3d([2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], false);
    "max_unpool2d", [u([1, 1, 1, 2])],
        |t| t[0].max_unpool2d(&ids(&[5, 7]).view([1, 1, 1, 2]), [4, 4]);
    "max_unpool3d", [u([1, 1, 1, 1, 2])],
        |t| t[0].max_unpool3d(&ids(&[1, 3]).view([1, 1, 1, 1, 2]), [2, 2, 4], [2, 2, 2], [0, 0, 0]);
    "reflection_pad1d", [u([2, 3])], |t| t[0].reflection_pad1d([1, 1]);
    "reflection_pad2d", [u([2, 3, 3])], |t| t[0].reflection_pad2d([1, 1, 1, 1]);
    "replication_pad1d", [u([2, 3])], |t| t[0].replication_pad1d([1, 1]);
    "replication_pad2d", [u([2, 3, 3])], |t| t[0].replication_pad2d([1, 1, 1, 1]);
    "replication_pad3d", [u([2, 3, 3, 3])], |t| t[0].replication_pad3d([1, 1, 1, 1, 1, 1]);
    "upsample_bicubic2d", [u([1, 2, 4, 4])], |t| t[0].upsample_bicubic2d([7, 7], false, None, None);
    "upsample_bilinear2d", [u([1, 2, 4, 4])],
        |t| t[0].upsample_bilinear2d([7, 7], false, None, None);
    "upsample_linear1d", [u([1, 2, 4])], |t| t[0].upsample_linear1d([7], false, None);
    "upsample_nearest1d", [u([1, 2, 4])], |t| t[0].upsample_nearest1d([7], None);
    "upsample_nearest2d", [u([1, 2, 4, 4])], |t| t[0].upsample_nearest2d([7, 7], None, None);
    "upsample_nearest3d", [u([1, 2, 4, 4, 4])],
        |t| t[0].upsample_nearest3d([7, 7, 7], None, None, None);
    "upsample_trilinear3d", [u([1, 2, 4, 4, 4])],
        |t| t[0].upsample_trilinear3d([7, 7, 7], false, None, None, None);
];
