// The O1 lists: which operation runs in which type.
#pragma once


namespace tch_amp {

enum class Policy {
  Lower,           // all arguments in the region's 16-bit type
  Fp32,            // all arguments in FP32
  Fp32SetDtype,    // the optional argument `dtype` becomes FP32 unless the caller set it
  Fp32AppendDtype, // the overload with a `dtype` argument is called instead, with FP32
  Promote,         // all arguments in the widest type among them
  IntoFirst,       // the other arguments in the type of the first, which is changed in place
};

struct Entry {
  Policy policy;
  const char* name; // with the overload behind a dot
};

// What libtorch 2.13 registers for AutocastCUDA (`AT_FORALL_*` in ATen/autocast_mode.h) and PyTorch documents as "CUDA
// Ops that autocast to …" in its autocast op reference, for the CPU, whose own lists keep most of this in 16 bits.
//
// libtorch's own AutocastCPU entries come first: an operation that has one keeps it. Operations that exist on CUDA only
// are left out (cudnn_convolution, cudnn_convolution_transpose, _thnn_fused_lstm_cell, _thnn_fused_gru_cell,
// _scaled_dot_product_flash_attention). binary_cross_entropy, an error there, runs in FP32 here.
constexpr Entry LISTS_OF_CUDA[] = {
    // Matrix products, convolutions and what is made of them.
    {Policy::Lower, "_convolution"},
    {Policy::Lower, "_convolution.deprecated"},
    {Policy::Lower, "addbmm"},
    {Policy::Lower, "addmm"},
    {Policy::Lower, "addmv"},
    {Policy::Lower, "addr"},
    {Policy::Lower, "baddbmm"},
    {Policy::Lower, "bmm"},
    {Policy::Lower, "chain_matmul"},
    {Policy::Lower, "conv1d"},
    {Policy::Lower, "conv2d"},
    {Policy::Lower, "conv3d"},
    {Policy::Lower, "conv_tbc"},
    {Policy::Lower, "conv_transpose1d"},
    {Policy::Lower, "conv_transpose2d.input"},
    {Policy::Lower, "conv_transpose3d.input"},
    {Policy::Lower, "convolution"},
    {Policy::Lower, "einsum"},
    {Policy::Lower, "gru_cell"},
    {Policy::Lower, "linalg_multi_dot"},
    {Policy::Lower, "linalg_vecdot"},
    {Policy::Lower, "linear"},
    {Policy::Lower, "lstm_cell"},
    {Policy::Lower, "matmul"},
    {Policy::Lower, "mm"},
    {Policy::Lower, "mv"},
    {Policy::Lower, "prelu"},
    {Policy::Lower, "rnn_relu_cell"},
    {Policy::Lower, "rnn_tanh_cell"},
    {Policy::Lower, "scaled_dot_product_attention"},

    // Recurrent layers. CUDA runs them as `_cudnn_rnn`, for which libtorch_cuda has an entry of its own
    // (ATen/cudnn/AutocastRNN.cpp).
    {Policy::Lower, "gru.data"},
    {Policy::Lower, "gru.input"},
    {Policy::Lower, "lstm.data"},
    {Policy::Lower, "lstm.input"},
    {Policy::Lower, "rnn_relu.data"},
    {Policy::Lower, "rnn_relu.input"},
    {Policy::Lower, "rnn_tanh.data"},
    {Policy::Lower, "rnn_tanh.input"},

    // Functions whose values leave the range or the precision of 16 bits.
    {Policy::Fp32, "acos"},
    {Policy::Fp32, "asin"},
    {Policy::Fp32, "cosh"},
    {Policy::Fp32, "erfinv"},
    {Policy::Fp32, "exp"},
    {Policy::Fp32, "expm1"},
    {Policy::Fp32, "log"},
    {Policy::Fp32, "log10"},
    {Policy::Fp32, "log1p"},
    {Policy::Fp32, "log2"},
    {Policy::Fp32, "logsumexp"},
    {Policy::Fp32, "pow.Scalar"},
    {Policy::Fp32, "pow.Tensor_Scalar"},
    {Policy::Fp32, "pow.Tensor_Tensor"},
    {Policy::Fp32, "reciprocal"},
    {Policy::Fp32, "rsqrt"},
    {Policy::Fp32, "sinh"},
    {Policy::Fp32, "softplus"},
    {Policy::Fp32, "tan"},

    // Norms and distances.
    {Policy::Fp32, "cdist"},
    {Policy::Fp32, "cosine_similarity"},
    {Policy::Fp32, "dist"},
    {Policy::Fp32, "frobenius_norm.dim"},
    {Policy::Fp32, "group_norm"},
    {Policy::Fp32, "layer_norm"},
    {Policy::Fp32, "native_layer_norm"},
    {Policy::Fp32, "nuclear_norm"},
    {Policy::Fp32, "nuclear_norm.dim"},
    {Policy::Fp32, "pdist"},
    {Policy::Fp32, "renorm"},
    {Policy::Fp32, "rms_norm"},
    {Policy::Fp32AppendDtype, "norm.Scalar"},
    {Policy::Fp32AppendDtype, "norm.ScalarOpt_dim"},
    {Policy::Fp32SetDtype, "linalg_matrix_norm"},
    {Policy::Fp32SetDtype, "linalg_matrix_norm.str_ord"},
    {Policy::Fp32SetDtype, "linalg_vector_norm"},

    // Sums and products.
    {Policy::Fp32SetDtype, "cumprod"},
    {Policy::Fp32SetDtype, "cumsum"},
    {Policy::Fp32SetDtype, "log_softmax.int"},
    {Policy::Fp32SetDtype, "prod"},
    {Policy::Fp32SetDtype, "prod.dim_int"},
    {Policy::Fp32SetDtype, "softmax.int"},
    {Policy::Fp32SetDtype, "sum"},
    {Policy::Fp32SetDtype, "sum.dim_IntList"},

    // Losses.
    {Policy::Fp32, "binary_cross_entropy"},
    {Policy::Fp32, "binary_cross_entropy_with_logits"},
    {Policy::Fp32, "cosine_embedding_loss"},
    {Policy::Fp32, "hinge_embedding_loss"},
    {Policy::Fp32, "huber_loss"},
    {Policy::Fp32, "kl_div"},
    {Policy::Fp32, "l1_loss"},
    {Policy::Fp32, "margin_ranking_loss"},
    {Policy::Fp32, "mse_loss"},
    {Policy::Fp32, "multi_margin_loss"},
    {Policy::Fp32, "multilabel_margin_loss"},
    {Policy::Fp32, "nll_loss"},
    {Policy::Fp32, "nll_loss2d"},
    {Policy::Fp32, "poisson_nll_loss"},
    {Policy::Fp32, "smooth_l1_loss"},
    {Policy::Fp32, "soft_margin_loss"},
    {Policy::Fp32, "triplet_margin_loss"},

    // Interpolation.
    {Policy::Fp32, "_upsample_bicubic2d_aa"},
    {Policy::Fp32, "_upsample_bilinear2d_aa"},
    {Policy::Fp32, "_upsample_nearest_exact1d"},
    {Policy::Fp32, "_upsample_nearest_exact2d"},
    {Policy::Fp32, "_upsample_nearest_exact3d"},
    {Policy::Fp32, "upsample_bicubic2d"},
    {Policy::Fp32, "upsample_bilinear2d"},
    {Policy::Fp32, "upsample_linear1d"},
    {Policy::Fp32, "upsample_nearest1d"},
    {Policy::Fp32, "upsample_nearest2d"},
    {Policy::Fp32, "upsample_nearest3d"},
    {Policy::Fp32, "upsample_trilinear3d"},

    // Operations of several tensors that need one common type.
    {Policy::Promote, "addcdiv"},
    {Policy::Promote, "addcmul"},
    {Policy::Promote, "atan2"},
    {Policy::Promote, "bilinear"},
    {Policy::Promote, "cross"},
    {Policy::Promote, "dot"},
    {Policy::Promote, "grid_sampler"},
    {Policy::Promote, "index_put"},
    {Policy::Promote, "scatter_add"},
    {Policy::Promote, "tensordot"},
    {Policy::Promote, "vdot"},
};

// Operations in no list of libtorch's that refuse arguments of different types, on every device: a region makes such
// arguments where FP32 embeddings meet 16-bit matrix products. In-place operations cannot change the type of what they
// write to, so that the rest is cast to it, as assignment does.
constexpr Entry MIXED_TYPES[] = {
    {Policy::Promote, "index_add"},
    {Policy::Promote, "index_copy"},
    {Policy::Promote, "masked_scatter"},
    {Policy::Promote, "scatter.reduce"},
    {Policy::Promote, "scatter.src"},
    {Policy::IntoFirst, "index_add_"},
    {Policy::IntoFirst, "index_copy_"},
    {Policy::IntoFirst, "index_put_"},
    {Policy::IntoFirst, "masked_scatter_"},
    {Policy::IntoFirst, "scatter_.reduce"},
    {Policy::IntoFirst, "scatter_.src"},
    {Policy::IntoFirst, "scatter_add_"},
};

} // namespace tch_amp
