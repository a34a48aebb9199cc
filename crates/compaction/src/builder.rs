//! Cutting a plan into tasks by key range.
