//! The one waiting primitive.
