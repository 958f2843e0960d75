//! Sets the cfg flags of the target Python (`Py_3_12`, `Py_LIMITED_API`, ...).

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
}
