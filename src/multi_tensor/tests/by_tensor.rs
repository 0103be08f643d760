//! Lamb and NovoGrad, which need figures of whole tensors: loops against tch, and every instruction
//! set against the first. Norms are summed in another order in tch, so that the last bits differ.

use proptest::{collection::vec, prelude::*};
use tch::{Kind, TchError, Tensor};

use super::{
    super::{InstructionSet, LambRule, Noise, NormType, NovoGradRule, Update},
    kind, tensor,
};

/// The elements of one tensor: gradient, weight, moments.
type Elements = Vec<(f32, f32, [f32; 2])>;

/// One tensor: its elements, the kinds of gradient and weight, which of them is strided, and the
/// kind of the weight's copy where the weight is FP32.
#[derive(Debug, Clone)]
struct Case {
    elements: Elements,
    kinds: (Kind, Kind),
    strided: (bool, bool),
    copy: Option<Kind>,
    one_moment: bool,
}

/// Gradients and weights that are zero at times, also all weights of a tensor; none so small that
/// FP32 normalizes its own noise.
fn cases(one_moment: bool, len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Case>> {
    let tenths = |most: i16| (-most..=most).prop_map(|n| f32::from(n) / 10.0);
    let moments = (tenths(30), tenths(30)).prop_map(|(m, v)| [m, v.abs()]);
    let elements = vec((tenths(50), tenths(40), moments), len);
    let copy = prop_oneof![Just(None), Just(Some(Kind::Half)), Just(Some(Kind::BFloat16))];
    let zero = prop::bool::weighted(0.2);
    let case = (elements, (kind(), kind()), any::<(bool, bool)>(), copy, zero);
    let case = case.prop_map(move |(mut elements, kinds, strided, copy, zero)| {
        if zero {
            elements.iter_mut().for_each(|(_, weight, _)| *weight = 0.0);
        }
        let copy = copy.filter(|_| kinds.1 == Kind::Float);
        Case { elements, kinds, strided, copy, one_moment }
    });
    vec(case, 1..5)
}

/// Weights, copies and moments after one update.
fn updated<R: Copy>(
    cases: &[Case],
    rules: &[R],
    noise: Option<Noise>,
    operation: impl FnOnce(&mut [Update<'_, R, 2>]) -> Result<(), TchError>,
) -> Vec<Tensor> {
    let _no_grad = tch::no_grad_guard();
    let make = |case: &Case| {
        let column = |of: fn(&(f32, f32, [f32; 2])) -> f32| case.elements.iter().map(of).collect();
        let grads: Vec<f32> = column(|e| e.0);
        let (weights, m): (Vec<f32>, Vec<f32>) = (column(|e| e.1), column(|e| e.2[0]));
        let v: Vec<f32> = column(|e| e.2[1]);
        let weight = tensor(&weights, case.kinds.1, case.strided.1);
        let copy = case.copy.map(|kind| weight.zeros_like().to_kind(kind));
        let v = match case.one_moment {
            true => Tensor::from(v.first().copied().unwrap_or(0.5)),
            false => Tensor::from_slice(&v),
        };
        (tensor(&grads, case.kinds.0, case.strided.0), weight, copy, [Tensor::from_slice(&m), v])
    };
    let mut all: Vec<_> = cases.iter().map(make).collect();
    let mut updates = Vec::new();
    for ((grad, weight, copy, state), rule) in all.iter_mut().zip(rules.iter().cycle()) {
        let (rule, copy) = (*rule, copy.as_mut());
        updates.push(Update { rule, grad, factor: 0.25, weight, noise, copy, state });
    }
    operation(&mut updates).unwrap();
    let mut after = Vec::new();
    for (_, weight, copy, [m, v]) in all {
        after.extend([Some(weight), copy, Some(m), Some(v)].into_iter().flatten());
    }
    after
}

/// In FP32 two ways to sum a norm may differ by `fp32`, which may make a step in 16 bits.
fn assert_close(actual: &[Tensor], expected: &[Tensor], fp32: f64) {
    for (actual, expected) in actual.iter().zip(expected) {
        let relative = match expected.kind() {
            Kind::Half => 2f64.powi(-10),
            Kind::BFloat16 => 2f64.powi(-7),
            _ => fp32,
        };
        let values = |tensor: &Tensor| {
            Vec::<f32>::try_from(tensor.to_kind(Kind::Float).flatten(0, -1)).unwrap()
        };
        for (a, b) in values(actual).into_iter().zip(values(expected)) {
            let allowed = relative * f64::from(b.abs()).max(1.0);
            assert!(f64::from((a - b).abs()) <= allowed, "{a}, not {b}: {:?}", expected.kind());
        }
    }
}

/// The bytes: all values are finite.
fn bits(tensors: &[Tensor]) -> Vec<Vec<u32>> {
    let flat = |tensor: &Tensor| super::bits(&tensor.flatten(0, -1));
    tensors.iter().map(flat).collect()
}

const LAMB: LambRule = LambRule {
    max_grad_norm: Some(1.0),
    beta1: 0.9,
    fresh1: 0.1,
    beta2: 0.99,
    fresh2: 0.01,
    unbias: 1.0,
    root_scale: 1.0,
    eps: 1e-3,
    l2: 0.0,
    decay: 0.01,
    lr: 0.01,
    trust: true,
};

const NOVOGRAD: NovoGradRule = NovoGradRule {
    norm: NormType::L2,
    first: false,
    beta1: 0.9,
    fresh: 0.1,
    beta2: 0.75,
    root_scale: 1.0,
    eps: 1e-3,
    inside: false,
    l2: 0.0,
    keep: 1.0,
    step_size: 0.01,
};

prop_compose! {
    fn lamb()(
        max_grad_norm in prop_oneof![Just(None), Just(Some(1.0)), Just(Some(1e6))],
        unbias in 1f32..10.0,
        root_scale in 1f32..10.0,
        decay in prop_oneof![Just(0.0f32), Just(0.01)],
        l2 in prop_oneof![Just(0.0f32), Just(0.01)],
        trust in any::<bool>(),
    ) -> LambRule {
        LambRule { max_grad_norm, unbias, root_scale, decay, l2, trust, ..LAMB }
    }
}

prop_compose! {
    fn novograd()(
        norm in prop_oneof![Just(NormType::L2), Just(NormType::Max)],
        first in any::<bool>(),
        root_scale in 1f32..10.0,
        inside in any::<bool>(),
        l2 in prop_oneof![Just(0.0f32), Just(0.01)],
        keep in prop_oneof![Just(1.0f32), Just(0.99)],
    ) -> NovoGradRule {
        NovoGradRule { norm, first, root_scale, inside, l2, keep, ..NOVOGRAD }
    }
}

fn noise() -> impl Strategy<Value = Option<Noise>> {
    prop_oneof![Just(None), Just(Some(Noise::new(3, 5).of("w")))]
}

fn lamb_in_loops(cases: &[Case], rules: &[LambRule]) -> Vec<Tensor> {
    updated(cases, rules, None, |updates| LambRule::loops(updates, InstructionSet::chosen()))
}

fn novograd_in_loops(cases: &[Case], rules: &[NovoGradRule]) -> Vec<Tensor> {
    updated(cases, rules, None, |updates| NovoGradRule::loops(updates, InstructionSet::chosen()))
}

fn assert_same_bits(run: impl Fn(InstructionSet) -> Vec<Tensor>) {
    let sets = InstructionSet::all();
    let expected = bits(&run(sets[0]));
    for set in &sets[1..] {
        assert_eq!(bits(&run(*set)), expected, "{set:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn lamb_is_the_same_in_loops_and_in_tch(
        cases in cases(false, 0..3000),
        rules in vec(lamb(), 1..3),
    ) {
        let in_tch = updated(&cases, &rules, None, LambRule::tensors);
        assert_close(&lamb_in_loops(&cases, &rules), &in_tch, 1e-5);
    }

    #[test]
    fn lamb_is_the_same_with_all_instructions(
        cases in cases(false, 0..2500),
        rules in vec(lamb(), 1..3),
        noise in noise(),
    ) {
        assert_same_bits(|set| {
            updated(&cases, &rules, noise, |updates| LambRule::loops(updates, set))
        });
    }

    #[test]
    fn novograd_is_the_same_in_loops_and_in_tch(
        cases in cases(true, 0..3000),
        rules in vec(novograd(), 1..3),
    ) {
        let in_tch = updated(&cases, &rules, None, NovoGradRule::tensors);
        assert_close(&novograd_in_loops(&cases, &rules), &in_tch, 1e-5);
    }

    #[test]
    fn novograd_is_the_same_with_all_instructions(
        cases in cases(true, 0..2500),
        rules in vec(novograd(), 1..3),
        noise in noise(),
    ) {
        assert_same_bits(|set| {
            updated(&cases, &rules, noise, |updates| NovoGradRule::loops(updates, set))
        });
    }
}

/// Tensors of several chunks: each is one tensor still. libtorch sums squares in FP32.
#[test]
fn chunks_add_up_to_tensors() {
    let grad = |i: usize| if i == 3 { 60.0 } else { (i % 97) as f32 - 48.0 };
    let element = |i: usize| (grad(i), (i % 89) as f32 / 10.0, [0.5, 0.25]);
    let cases = |one_moment| {
        let case = |len: usize| Case {
            elements: (0..len).map(element).collect(),
            kinds: (Kind::Float, Kind::Float),
            strided: (false, false),
            copy: Some(Kind::BFloat16),
            one_moment,
        };
        [case(200_001), case(7)]
    };
    let in_tch = updated(&cases(false), &[LAMB], None, LambRule::tensors);
    assert_close(&lamb_in_loops(&cases(false), &[LAMB]), &in_tch, 1e-4);
    for norm in [NormType::L2, NormType::Max] {
        let rules = [NovoGradRule { norm, ..NOVOGRAD }];
        let in_tch = updated(&cases(true), &rules, None, NovoGradRule::tensors);
        assert_close(&novograd_in_loops(&cases(true), &rules), &in_tch, 1e-4);
    }
}

/// A gradient of another size is refused, and neither moments nor weights are changed.
#[test]
fn gradients_of_another_size_change_nothing() {
    fn refused<R: Copy>(
        rule: R,
        operation: impl FnOnce(&mut [Update<'_, R, 2>]) -> Result<(), TchError>,
    ) {
        let _no_grad = tch::no_grad_guard();
        let grad = Tensor::from_slice(&[1f32, 2.0]);
        let mut weight = Tensor::from_slice(&[3f32]);
        let mut state = [Tensor::from_slice(&[4f32]), Tensor::from_slice(&[5f32])];
        let update = Update {
            rule,
            grad: &grad,
            factor: 1.0,
            weight: &mut weight,
            noise: None,
            copy: None,
            state: &mut state,
        };
        assert!(matches!(operation(&mut [update]), Err(TchError::Shape(_))));
        let after = [&weight, &state[0], &state[1]].map(|t| t.double_value(&[0]));
        assert_eq!(after, [3.0, 4.0, 5.0]);
    }
    refused(LAMB, |updates| LambRule::loops(updates, InstructionSet::chosen()));
    refused(NOVOGRAD, |updates| NovoGradRule::loops(updates, InstructionSet::chosen()));
}
