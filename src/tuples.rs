//! The tuples that this crate's traits are implemented for.

/// Calls a macro with the types and positions in each tuple, and their number.
macro_rules! for_tuples {
    ($implement:ident) => {
        $implement! {
            (A 0) 1;
            (A 0, B 1) 2;
            (A 0, B 1, C 2) 3;
            (A 0, B 1, C 2, D 3) 4;
            (A 0, B 1, C 2, D 3, E 4) 5;
            (A 0, B 1, C 2, D 3, E 4, F 5) 6;
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6) 7;
            (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7) 8;
        }
    };
}
pub(crate) use for_tuples;
