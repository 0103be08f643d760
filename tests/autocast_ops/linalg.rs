//! Linear algebra, FFTs and quantiles, which have no 16-bit kernels on the CPU and run in FP32.

use tch::Tensor;

use super::case::{Case, NONE, cases, spd, u};

fn pivots() -> Tensor {
    Tensor::from_slice(&[1i32, 2, 3])
}

const WHOLE: Option<i64> = None;

pub const LINALG: &[Case] = cases![Fp32;
    "_lu_with_info", [spd(3)], |t| t[0].internal_lu_with_info(true, true);
    "cholesky", [spd(3)], |t| t[0].cholesky(false);
    "cholesky_inverse", [spd(3)], |t| t[0].cholesky_inverse(false);
    "cholesky_solve", [u([3, 2]), spd(3)], |t| t[0].cholesky_solve(&t[1], false);
    "geqrf", [spd(3)], |t| t[0].geqrf();
    "inverse", [spd(3)], |t| t[0].inverse();
    "linalg_cholesky", [spd(3)], |t| t[0].linalg_cholesky(false);
    "linalg_cholesky_ex", [spd(3)], |t| t[0].linalg_cholesky_ex(false, true);
    "linalg_cond", [spd(3)], |t| t[0].linalg_cond(2);
    "linalg_cond.p_str", [spd(3)], |t| t[0].linalg_cond_p_str("fro");
    "linalg_eig", [spd(3)], |t| t[0].linalg_eig();
    "linalg_eigh", [spd(3)], |t| t[0].linalg_eigh("L");
    "linalg_eigvals", [spd(3)], |t| t[0].linalg_eigvals();
    "linalg_eigvalsh", [spd(3)], |t| t[0].linalg_eigvalsh("L");
    "linalg_householder_product", [u([4, 3]), u([3])], |t| t[0].linalg_householder_product(&t[1]);
    "linalg_inv", [spd(3)], |t| Tensor::linalg_inv(&t[0]);
    "linalg_inv_ex", [spd(3)], |t| Tensor::linalg_inv_ex(&t[0], true);
    "linalg_lstsq", [spd(3), u([3, 2])], |t| t[0].linalg_lstsq(&t[1], None, "gels");
    "linalg_matrix_rank", [spd(3)], |t| t[0].linalg_matrix_rank(1e-3, false);
    "linalg_matrix_rank.atol_rtol_float", [spd(3)],
        |t| t[0].linalg_matrix_rank_atol_rtol_float(1e-3, 1e-3, false);
    "linalg_matrix_rank.atol_rtol_tensor", [spd(3), u([])],
        |t| t[0].linalg_matrix_rank_atol_rtol_tensor(Some(&t[1]), NONE, false);
    "linalg_matrix_rank.tol_tensor", [spd(3), u([])],
        |t| t[0].linalg_matrix_rank_tol_tensor(&t[1], false);
    "linalg_qr", [spd(3)], |t| Tensor::linalg_qr(&t[0], "reduced");
    "linalg_solve", [spd(3), u([3, 2])], |t| Tensor::linalg_solve(&t[0], &t[1], true);
    "linalg_tensorinv", [spd(4).view([2, 2, 4])], |t| t[0].linalg_tensorinv(2);
    "linalg_tensorsolve", [spd(4).view([2, 2, 4]), u([2, 2])],
        |t| t[0].linalg_tensorsolve(&t[1], WHOLE);
    "lu_solve", [u([3, 2]), spd(3)], |t| t[0].lu_solve(&t[1], &pivots());
    "orgqr", [u([4, 3]), u([3])], |t| t[0].orgqr(&t[1]);
    "ormqr", [u([4, 3]), u([3]), u([4, 2])], |t| t[0].ormqr(&t[1], &t[2], true, false);
    "pinverse", [spd(3)], |t| t[0].pinverse(1e-6);
    "qr", [spd(3)], |t| t[0].qr(true);
    "svd", [spd(3)], |t| t[0].svd(true, true);
    "triangular_solve", [u([3, 2]), spd(3)], |t| t[0].triangular_solve(&t[1], true, false, false);
];

pub const FFT: &[Case] = cases![Fp32;
    "fft_fft", [u([4, 6])], |t| t[0].fft_fft(None, -1, "backward");
    "fft_fft2", [u([4, 6])], |t| t[0].fft_fft2(WHOLE, [-2, -1], "backward");
    "fft_fftn", [u([4, 6])], |t| t[0].fft_fftn(WHOLE, WHOLE, "backward");
    "fft_hfft", [u([4, 6])], |t| t[0].fft_hfft(None, -1, "backward");
    "fft_ifft", [u([4, 6])], |t| t[0].fft_ifft(None, -1, "backward");
    "fft_ifft2", [u([4, 6])], |t| t[0].fft_ifft2(WHOLE, [-2, -1], "backward");
    "fft_ifftn", [u([4, 6])], |t| t[0].fft_ifftn(WHOLE, WHOLE, "backward");
    "fft_ihfft", [u([4, 6])], |t| t[0].fft_ihfft(None, -1, "backward");
    "fft_irfft", [u([4, 6])], |t| t[0].fft_irfft(None, -1, "backward");
    "fft_irfft2", [u([4, 6])], |t| t[0].fft_irfft2(WHOLE, [-2, -1], "backward");
    "fft_irfftn", [u([4, 6])], |t| t[0].fft_irfftn(WHOLE, WHOLE, "backward");
    "fft_rfft", [u([4, 6])], |t| t[0].fft_rfft(None, -1, "backward");
    "fft_rfft2", [u([4, 6])], |t| t[0].fft_rfft2(WHOLE, [-2, -1], "backward");
    "fft_rfftn", [u([4, 6])], |t| t[0].fft_rfftn(WHOLE, WHOLE, "backward");
    "nanquantile", [u([3, 4]), u([2])], |t| t[0].nanquantile(&t[1], 1, false, "linear");
    "nanquantile.scalar", [u([3, 4])], |t| t[0].nanquantile_scalar(0.3, 1, false, "linear");
    "polar", [u([3]), u([3])], |t| Tensor::polar(&t[0], &t[1]);
    "quantile", [u([3, 4]), u([2])], |t| t[0].quantile(&t[1], 1, false, "linear");
    "quantile.scalar", [u([3, 4])], |t| t[0].quantile_scalar(0.3, 1, false, "linear");
    "stft", [u([2, 16]), u([8])], |t| t[0].stft(8, 4, 8, Some(&t[1]), false, true, true, false);
    "stft.center", [u([2, 16]), u([8])],
        |t| t[0].stft_center(8, 4, 8, Some(&t[1]), false, "reflect", false, true, true, false);
    "view_as_complex", [u([3, 2])], |t| t[0].view_as_complex();
];
