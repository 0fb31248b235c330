;; A package of Guix, built from the source tree that contains this file:
;;
;;     guix build --file=packaging/guix/libdist.scm
;;
;; The build has no network. So `cargo vendor` must have put the packages of Cargo.lock into the folder vendor/
;; first, and its output into .cargo/config.toml.
(use-modules (guix gexp)
             (guix packages)
             (guix utils)
             (guix build-system cmake)
             ((guix licenses) #:prefix license:)
             (gnu packages rust))

(define %root (string-append (current-source-directory) "/../.."))

(define (source-file? file stat)
  ;; The folders of builds are no part of the source.
  (not (member (basename file) '(".git" "target" "build" "__pycache__"))))

(package
  (name "libdist")
  (version "0.1.0")
  (source (local-file %root "libdist-source" #:recursive? #t #:select? source-file?))
  (build-system cmake-build-system)
  (arguments
   (list #:build-type "Release"
         ;; The tests start many processes; `cargo xtask test` runs them.
         #:tests? #f
         #:configure-flags #~(list "-DDIST_CARGO_OFFLINE=ON" "-DCMAKE_INSTALL_LIBDIR=lib")
         #:phases
         #~(modify-phases %standard-phases
             (add-before 'configure 'set-cargo-home
               (lambda _
                 (setenv "CARGO_HOME" (string-append (getcwd) "/cargo-home")))))))
  (native-inputs (list rust `(,rust "cargo")))
  (home-page "https://example.org/libdist")
  (synopsis "Collective communication between the processes of a training job")
  (description
   "libdist lets processes combine and exchange arrays: all-reduce, broadcast, all-gather, messages, and a key-value
store by which the processes find each other.  A failed process becomes an error that names it.")
  (supported-systems '("x86_64-linux" "aarch64-linux"))
  (license license:asl2.0))
