//! Lets the names of Python's library be looked up when Python loads this one, where linkers insist on being told so.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
