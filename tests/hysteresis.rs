//! The two rules of hysteresis, by arithmetic and against their definitions over a whole history.

use proptest::{collection::vec, prelude::*};
use tch_amp::{Dynamic, Scaler};

fn repeat(scaler: &mut Scaler, overflow: bool, times: u32) {
    (0..times).for_each(|_| scaler.update(overflow));
}

/// The grid of Apex's `test_update_scale_hysteresis`, less its growth factor of 1, which is refused
/// here. Where Apex's scale ends at 0, this one ends at its floor.
#[test]
fn consecutive_hysteresis_follows_the_grid_of_apex() {
    for init in [1.0, 1024.0, 65536.0] {
        for growth in [2.0, 4.0] {
            for backoff in [0.5, 0.25] {
                for interval in [10, 100] {
                    for count in [10, 100] {
                        follow_apex(init, growth, backoff, interval, count);
                    }
                }
            }
        }
    }
}

fn follow_apex(init: f64, growth: f64, backoff: f64, interval: u32, count: u32) {
    let settings = Dynamic::new()
        .init_scale(init)
        .growth_factor(growth)
        .backoff_factor(backoff)
        .growth_interval(interval)
        .consecutive_hysteresis(count);
    let mut scaler = Scaler::new(settings.into());
    // Overflows short of the count change nothing, however often a good step interrupts them.
    for _ in 0..3 {
        repeat(&mut scaler, true, count - 1);
        assert_eq!(scaler.scale(), init);
        repeat(&mut scaler, false, 1);
        assert_eq!((scaler.scale(), scaler.unskipped()), (init, 1));
    }
    // That good step counts towards the growth.
    repeat(&mut scaler, false, interval - 2);
    assert_eq!(scaler.scale(), init);
    repeat(&mut scaler, false, 1);
    assert_eq!((scaler.scale(), scaler.unskipped()), (init * growth, 0));
    // From the last of the count on, each overflow backs off.
    repeat(&mut scaler, true, count - 1);
    assert_eq!(scaler.scale(), init * growth);
    for times in 1..=5 {
        repeat(&mut scaler, true, 1);
        assert_eq!(scaler.scale(), init * growth * backoff.powi(times));
    }
    repeat(&mut scaler, true, 1000);
    assert_eq!(scaler.scale(), 2f64.powi(-24));
    repeat(&mut scaler, false, interval);
    assert_eq!(scaler.scale(), 2f64.powi(-24) * growth);
}

/// Megatron-LM: good steps do not refill the count, growth does.
#[test]
fn hysteresis_is_refilled_by_growth_alone() {
    let settings = Dynamic::new().init_scale(1024.0).growth_interval(4).hysteresis(3);
    let mut scaler = Scaler::new(settings.into());
    let mut steps = |events: &str| {
        events.chars().for_each(|event| scaler.update(event == 'x'));
        scaler.scale()
    };
    assert_eq!(steps("xx"), 1024.0);
    assert_eq!(steps("..."), 1024.0);
    assert_eq!(steps("x"), 512.0, "the third overflow, with good steps between");
    assert_eq!(steps(".x"), 256.0, "the count is used up");
    assert_eq!(steps("...."), 512.0, "growth");
    assert_eq!(steps("xx"), 512.0, "and a full count");
    assert_eq!(steps("xx"), 128.0);
}

/// At the ceiling the scale cannot grow; the end of an interval refills the count all the same.
#[test]
fn hysteresis_is_refilled_at_the_ceiling() {
    let settings = Dynamic::new().max_loss_scale(64.0).growth_interval(2).hysteresis(2);
    let mut scaler = Scaler::new(settings.into());
    for _ in 0..10 {
        repeat(&mut scaler, true, 1);
        assert_eq!(scaler.scale(), 64.0);
        repeat(&mut scaler, false, 2);
    }
}

#[test]
fn by_default_every_overflow_backs_off() {
    let mut scaler = Scaler::new(Dynamic::new().into());
    for times in 1..=10 {
        repeat(&mut scaler, true, 1);
        assert_eq!(scaler.scale(), 2f64.powi(16 - times));
        repeat(&mut scaler, false, 5);
    }
}

/// A history of steps, `true` for an overflow.
struct History<'a> {
    events: &'a [bool],
    interval: usize,
    count: usize,
}

impl History<'_> {
    /// How many events like the one at `i` come one after the other, up to and with `i`.
    fn run(&self, i: usize) -> usize {
        self.events[..=i].iter().rev().take_while(|event| **event == self.events[i]).count()
    }

    fn ends_interval(&self, i: usize) -> bool {
        !self.events[i] && self.run(i).is_multiple_of(self.interval)
    }

    /// Megatron's rule: enough overflows since the last interval ended.
    fn megatron(&self, i: usize) -> bool {
        let since = (0..=i).rev().take_while(|&j| !self.ends_interval(j));
        self.events[i] && since.filter(|&j| self.events[j]).count() >= self.count
    }

    /// Apex's rule: enough overflows in a row.
    fn apex(&self, i: usize) -> bool {
        self.events[i] && self.run(i) >= self.count
    }

    /// The exponents of the scale after each step, from 10, between -3 and 14.
    fn exponents(&self, backs_off: impl Fn(&Self, usize) -> bool) -> Vec<i32> {
        let after = |exponent: &mut i32, i: usize| {
            if backs_off(self, i) {
                *exponent = (*exponent - 1).max(-3);
            } else if self.ends_interval(i) {
                *exponent = (*exponent + 1).min(14);
            }
            Some(*exponent)
        };
        (0..self.events.len()).scan(10, after).collect()
    }
}

fn scales(settings: Dynamic, events: &[bool]) -> Vec<f64> {
    let settings = settings.max_loss_scale(16384.0).min_loss_scale(0.125).init_scale(1024.0);
    let mut scaler = Scaler::new(settings.into());
    let after = |&overflow: &bool| {
        scaler.update(overflow);
        scaler.scale()
    };
    events.iter().map(after).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn both_rules_follow_their_definitions(
        events in vec(prop::bool::weighted(0.4), 0..60),
        interval in 1u32..5,
        count in 1u32..6,
    ) {
        let history =
            History { events: &events, interval: interval as usize, count: count as usize };
        let powers = |exponents: Vec<i32>| exponents.into_iter().map(|e| 2f64.powi(e)).collect();
        let settings = Dynamic::new().growth_interval(interval);
        let expected: Vec<f64> = powers(history.exponents(History::megatron));
        prop_assert_eq!(scales(settings.hysteresis(count), &events), expected);
        let expected: Vec<f64> = powers(history.exponents(History::apex));
        prop_assert_eq!(scales(settings.consecutive_hysteresis(count), &events), expected);
    }
}
