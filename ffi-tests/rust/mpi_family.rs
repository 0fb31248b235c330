//! Tests how the MPI plug-in interprets the launcher and the MPI library that it finds. The test
//! compiles the plug-in's file and needs no MPI.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "the plug-in uses all of it")]
#[path = "../../plugins/mpi/src/family.rs"]
mod family;

use family::{Family, launched_size, launcher_mismatch, library_mismatch, single_rank_error};

const BOTH: [Family; 2] = [Family::OpenMpi, Family::Mpich];

/// Returns a lookup function for these environment variables.
fn environment_lookup(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    move |name| {
        let entry = variables.iter().find(|(known, _)| *known == name);
        entry.map(|(_, value)| (*value).to_owned())
    }
}

#[test]
fn mpi_family_is_found_from_its_version_text() {
    let versions = [
        (
            "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4",
            Family::OpenMpi,
        ),
        ("MPICH Version: 4.0.2 MPICH Release date: Thu Apr  7 12:34:45 CDT 2022", Family::Mpich),
        ("Intel(R) MPI Library 2021.8 for Linux* OS", Family::Mpich),
        ("MVAPICH2 Version : 2.3.7", Family::Mpich),
        ("MPI VERSION : CRAY MPICH version 8.1.25", Family::Mpich),
    ];
    for (text, family) in versions {
        assert_eq!(Family::from_version(text), Some(family), "{text}");
        assert_eq!(library_mismatch(family, text), None);
        let refused = library_mismatch(family.other(), text).unwrap();
        assert!(refused.contains(family.name()), "{refused}");
        assert!(refused.contains(family.other().name()), "{refused}");
    }
    assert_eq!(Family::from_version("Some MPI 1.0"), None);
    let refused = library_mismatch(Family::Mpich, "Some MPI 1.0").unwrap();
    assert!(refused.contains("\"Some MPI 1.0\"") && refused.contains("MPICH"), "{refused}");
}

#[test]
fn job_size_is_read_from_launcher_variables() {
    let nothing = environment_lookup(&[]);
    let both = environment_lookup(&[("OMPI_COMM_WORLD_SIZE", "4"), ("PMI_SIZE", " 2\n")]);
    assert_eq!(
        (launched_size(Family::OpenMpi, &both), launched_size(Family::Mpich, &both)),
        (Some(4), Some(2))
    );
    for family in BOTH {
        assert_eq!(launched_size(family, &nothing), None);
        assert_eq!(
            launched_size(
                family,
                &environment_lookup(&[("OMPI_COMM_WORLD_SIZE", "x"), ("PMI_SIZE", "-1")])
            ),
            None
        );
    }
}

#[test]
fn launcher_of_another_mpi_is_refused_before_mpi_init() {
    let cases = [
        (Family::OpenMpi, "PMI_SIZE", "libdist_mpi_mpich.so", "mpirun.openmpi"),
        (Family::Mpich, "OMPI_COMM_WORLD_SIZE", "libdist_mpi_openmpi.so", "mpiexec.mpich"),
    ];
    for (own, variable, plugin, launcher) in cases {
        let refused = launcher_mismatch(own, &environment_lookup(&[(variable, "3")])).unwrap();
        for words in [own.name(), own.other().name(), variable, "is 3", plugin, launcher] {
            assert!(refused.contains(words), "{words}: {refused}");
        }
        // A job of one rank needs no launcher.
        assert_eq!(launcher_mismatch(own, &environment_lookup(&[(variable, "1")])), None);
    }
}

#[test]
fn unknown_launchers_are_accepted() {
    let open_mpi = ("OMPI_COMM_WORLD_SIZE", "2");
    let mpich = ("PMI_SIZE", "2");
    for own in BOTH {
        assert_eq!(launcher_mismatch(own, &environment_lookup(&[])), None);
        // The environment of one launcher inside of another launcher's job.
        assert_eq!(launcher_mismatch(own, &environment_lookup(&[open_mpi, mpich])), None);
        for other in [open_mpi, mpich] {
            assert_eq!(
                launcher_mismatch(own, &environment_lookup(&[other, ("SLURM_PROCID", "0")])),
                None
            );
        }
    }
    assert_eq!(launcher_mismatch(Family::OpenMpi, &environment_lookup(&[open_mpi])), None);
    assert_eq!(launcher_mismatch(Family::Mpich, &environment_lookup(&[mpich])), None);
}

#[test]
fn single_rank_error_names_the_launcher() {
    let text = single_rank_error(Family::Mpich, 4, &environment_lookup(&[]));
    for words in ["MPICH: this process is alone", "the group has 4 ranks", "mpiexec.mpich"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("The launcher of"), "{text}");
    let text =
        single_rank_error(Family::Mpich, 4, &environment_lookup(&[("OMPI_COMM_WORLD_SIZE", "4")]));
    assert!(text.contains("The launcher of Open MPI started 4 ranks"), "{text}");
    let text = single_rank_error(Family::OpenMpi, 2, &environment_lookup(&[("PMI_SIZE", "1")]));
    assert!(text.contains("mpirun.openmpi") && !text.contains("The launcher of"), "{text}");
}

/// The library looks for the plug-ins under these names.
#[test]
fn each_family_has_its_own_plugin() {
    let plugin_files = BOTH.map(Family::plugin_file);
    assert_eq!(plugin_files, ["libdist_mpi_openmpi.so", "libdist_mpi_mpich.so"]);
    let library =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ffi/backend_mpi.rs"));
    let library = library.unwrap();
    assert!(plugin_files.iter().all(|plugin_file| library.contains(&format!("\"{plugin_file}\""))));
}
