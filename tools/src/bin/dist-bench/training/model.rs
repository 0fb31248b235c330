//! The models of `--training`: the sizes of their parameters, computed from the definition of each
//! architecture. The functions do no I/O.
//!
//! Parameters are listed in the order in which the forward pass uses them. Gradients become ready
//! in the reverse order.

use clap::ValueEnum;

/// A model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrainingModel {
    /// 200 parameters of 512 KiB
    A,
    /// ResNet-50: 161 parameters, 97.5 MiB
    B,
    /// GPT-2 small: 148 parameters, 475 MiB
    C,
    /// 12 parameters of 4 B to 16 KiB, for a functional check
    Tiny,
}

/// The size of an element of a gradient in bytes. The type is f32.
pub(super) const ELEMENT_BYTES: usize = 4;

impl TrainingModel {
    /// The models of the published results.
    pub(super) const ALL: [Self; 3] = [Self::A, Self::B, Self::C];

    /// Returns the name on the command line and in files.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::Tiny => "tiny",
        }
    }

    /// Returns the model with this name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::A, Self::B, Self::C, Self::Tiny].into_iter().find(|model| model.name() == name)
    }

    /// Returns the name in tables.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::A => "model a (200 x 512 KiB)",
            Self::B => "model b (ResNet-50)",
            Self::C => "model c (GPT-2 small)",
            Self::Tiny => "tiny model",
        }
    }

    /// Returns the number of elements of each parameter.
    pub(super) fn parameter_counts(self) -> Vec<usize> {
        match self {
            Self::A => vec![(512 << 10) / ELEMENT_BYTES; 200],
            Self::B => resnet50(),
            Self::C => gpt2_small(),
            Self::Tiny => (0..12).map(|power| 1 << power).collect(),
        }
    }
}

/// Returns the parameters of ResNet-50 for 1,000 classes (He et al., "Deep Residual Learning",
/// table 1).
fn resnet50() -> Vec<usize> {
    /// For each stage, the number of blocks and the number of channels inside a block. The output
    /// of a block has [`EXPANSION`] times as many channels.
    const STAGES: [(usize, usize); 4] = [(3, 64), (4, 128), (6, 256), (3, 512)];
    const EXPANSION: usize = 4;
    let mut counts = Vec::new();
    // Adds a convolution without bias, and the weight and the bias of the batch normalisation after
    // it.
    let mut convolution = |input: usize, output: usize, kernel: usize| {
        counts.extend([input * output * kernel * kernel, output, output]);
    };
    let mut channels = 64;
    convolution(3, channels, 7);
    for (blocks, width) in STAGES {
        let output = width * EXPANSION;
        for block in 0..blocks {
            convolution(channels, width, 1);
            convolution(width, width, 3);
            convolution(width, output, 1);
            if block == 0 {
                // In the first block of a stage, the shortcut is a convolution that changes the
                // number of channels.
                convolution(channels, output, 1);
            }
            channels = output;
        }
    }
    counts.extend([channels * 1000, 1000]);
    counts
}

/// Returns the parameters of GPT-2 small (Radford et al.; 12 layers, width 768). The output layer
/// uses the weights of the embedding. The forward pass uses the embedding first, so its gradient is
/// ready last.
fn gpt2_small() -> Vec<usize> {
    const LAYERS: usize = 12;
    const WIDTH: usize = 768;
    const VOCABULARY: usize = 50_257;
    const POSITIONS: usize = 1024;
    let mut counts = vec![VOCABULARY * WIDTH, POSITIONS * WIDTH];
    for _ in 0..LAYERS {
        // A layer consists of a normalisation, the attention, a normalisation and the feed-forward
        // part. Each weight is followed by its bias.
        counts.extend([WIDTH, WIDTH]);
        counts.extend([WIDTH * 3 * WIDTH, 3 * WIDTH, WIDTH * WIDTH, WIDTH]);
        counts.extend([WIDTH, WIDTH]);
        counts.extend([WIDTH * 4 * WIDTH, 4 * WIDTH, 4 * WIDTH * WIDTH, WIDTH]);
    }
    counts.extend([WIDTH, WIDTH]);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(model: TrainingModel) -> (usize, usize) {
        let counts = model.parameter_counts();
        (counts.len(), counts.iter().sum())
    }

    #[test]
    fn models_have_the_published_sizes() {
        assert_eq!(totals(TrainingModel::A), (200, (100 << 20) / ELEMENT_BYTES));
        assert_eq!(totals(TrainingModel::B), (161, 25_557_032));
        assert_eq!(totals(TrainingModel::C), (148, 124_439_808));
        assert_eq!(totals(TrainingModel::Tiny), (12, 4095));
    }

    #[test]
    fn the_first_and_last_parameters_are_known() {
        let (resnet, gpt) =
            (TrainingModel::B.parameter_counts(), TrainingModel::C.parameter_counts());
        assert_eq!((resnet[0], resnet[159], resnet[160]), (9408, 2_048_000, 1000));
        assert_eq!((gpt[0], gpt[147]), (38_597_376, 768));
    }

    #[test]
    fn models_are_found_by_name() {
        for model in TrainingModel::ALL.into_iter().chain([TrainingModel::Tiny]) {
            assert_eq!(TrainingModel::from_name(model.name()), Some(model));
        }
        assert_eq!(TrainingModel::from_name("d"), None);
    }
}
