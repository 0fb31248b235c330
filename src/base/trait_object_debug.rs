//! The text of a trait object for `Debug`.
//!
//! If a trait requires `Debug`, the table of each of its objects refers to the code that prints all
//! fields of the object, and of the objects in these fields. No other code of the library uses
//! this code, which has 0.2 MB. So these traits do not require `Debug`: the text of their objects
//! is the name of the trait.

/// Implements `Debug` for the objects of a trait. The text is the name of the trait.
macro_rules! impl_debug_of_objects {
    ($name:ident) => {
        impl std::fmt::Debug for dyn $name + '_ {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(stringify!($name))
            }
        }
    };
}

pub(crate) use impl_debug_of_objects;
