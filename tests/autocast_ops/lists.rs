//! The operations that libtorch 2.13 registers for autocast.

/// `Dispatcher::getRegistrationsForDispatchKey(AutocastCUDA)`.
#[rustfmt::skip]
pub const CUDA: [&str; 119] = [
    "_convolution", "_convolution.deprecated", "_scaled_dot_product_flash_attention",
    "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d", "acos", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr",
    "asin", "atan2", "baddbmm", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "bmm", "cdist", "chain_matmul", "conv1d", "conv2d",
    "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input",
    "convolution", "cosh", "cosine_embedding_loss", "cosine_similarity", "cross",
    "cudnn_convolution", "cudnn_convolution_transpose", "cumprod", "cumsum", "dist", "dot",
    "einsum", "erfinv", "exp", "expm1", "frobenius_norm.dim", "grid_sampler", "group_norm",
    "gru_cell", "hinge_embedding_loss", "huber_loss", "index_put", "kl_div", "l1_loss",
    "layer_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "linalg_multi_dot",
    "linalg_vecdot", "linalg_vector_norm", "linear", "log", "log10", "log1p", "log2",
    "log_softmax.int", "logsumexp", "lstm_cell", "margin_ranking_loss", "matmul", "mm", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "mv", "native_layer_norm", "nll_loss",
    "nll_loss2d", "norm.Scalar", "norm.ScalarOpt_dim", "nuclear_norm", "nuclear_norm.dim", "pdist",
    "poisson_nll_loss", "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "prelu", "prod",
    "prod.dim_int", "reciprocal", "renorm", "rms_norm", "rnn_relu_cell", "rnn_tanh_cell", "rsqrt",
    "scaled_dot_product_attention", "scatter_add", "sinh", "smooth_l1_loss", "soft_margin_loss",
    "softmax.int", "softplus", "sum", "sum.dim_IntList", "tan", "tensordot", "triplet_margin_loss",
    "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d", "vdot",
];

/// `Dispatcher::getRegistrationsForDispatchKey(AutocastCPU)`, before anything was added.
#[rustfmt::skip]
pub const CPU: [&str; 127] = [
    "_addmm_activation", "_convolution.deprecated", "_grid_sampler_2d_cpu_fallback",
    "_lu_with_info", "_native_multi_head_attention", "adaptive_avg_pool3d", "adaptive_max_pool3d",
    "addbmm", "addmm", "avg_pool3d", "baddbmm", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "bmm", "cat", "cdist", "cholesky", "cholesky_inverse",
    "cholesky_solve", "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d",
    "conv3d.padding", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "cosine_embedding_loss", "cross_entropy_loss", "ctc_loss.IntList",
    "ctc_loss.Tensor", "fake_quantize_per_tensor_affine", "fft_fft", "fft_fft2", "fft_fftn",
    "fft_hfft", "fft_ifft", "fft_ifft2", "fft_ifftn", "fft_ihfft", "fft_irfft", "fft_irfft2",
    "fft_irfftn", "fft_rfft", "fft_rfft2", "fft_rfftn", "fractional_max_pool2d",
    "fractional_max_pool3d", "geqrf", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d",
    "hinge_embedding_loss", "huber_loss", "index_copy", "inverse", "kl_div", "l1_loss",
    "linalg_cholesky", "linalg_cholesky_ex", "linalg_cond", "linalg_cond.p_str", "linalg_eig",
    "linalg_eigh", "linalg_eigvals", "linalg_eigvalsh", "linalg_householder_product", "linalg_inv",
    "linalg_inv_ex", "linalg_lstsq", "linalg_matrix_rank", "linalg_matrix_rank.atol_rtol_float",
    "linalg_matrix_rank.atol_rtol_tensor", "linalg_matrix_rank.tol_tensor", "linalg_qr",
    "linalg_solve", "linalg_svd", "linalg_svdvals", "linalg_tensorinv", "linalg_tensorsolve",
    "linalg_vecdot", "linear", "lu_solve", "margin_ranking_loss", "matmul", "max_pool3d",
    "max_unpool2d", "max_unpool3d", "mkldnn_rnn_layer", "mm", "mse_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_margin_loss_forward", "nanquantile", "nanquantile.scalar",
    "nll_loss", "nll_loss2d", "orgqr", "ormqr", "pinverse", "poisson_nll_loss", "polar", "prelu",
    "prod", "prod.dim_int", "qr", "quantile", "quantile.scalar", "reflection_pad1d",
    "reflection_pad2d", "replication_pad1d", "replication_pad2d", "replication_pad3d",
    "scaled_dot_product_attention", "smooth_l1_loss", "soft_margin_loss", "stack", "stft",
    "stft.center", "svd", "trace", "triangular_solve", "triplet_margin_loss", "view_as_complex",
];

/// The operations without a case, and why.
pub const WITHOUT_CASE: [(&str, &str); 13] = [
    ("_scaled_dot_product_flash_attention", "exists on CUDA only"),
    ("_thnn_fused_gru_cell", "exists on CUDA only"),
    ("_thnn_fused_lstm_cell", "exists on CUDA only"),
    ("cudnn_convolution", "exists on CUDA only"),
    ("cudnn_convolution_transpose", "exists on CUDA only"),
    ("linalg_matrix_norm", "tch has no binding"),
    ("linalg_matrix_norm.str_ord", "tch has no binding"),
    ("linalg_svd", "tch cannot leave out `driver`, which the CPU refuses"),
    ("linalg_svdvals", "tch cannot leave out `driver`, which the CPU refuses"),
    ("linalg_vector_norm", "tch has no binding"),
    ("mkldnn_rnn_layer", "only some CPUs have it in 16 bits; `lstm` uses it where it can"),
    ("multi_margin_loss", "tch has no binding"),
    ("multilabel_margin_loss_forward", "tch has no binding"),
];
