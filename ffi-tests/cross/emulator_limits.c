/* Shows what the emulator qemu-user does differently from Linux. `cargo xtask cross` runs each check twice: natively,
   where it must pass, and in the emulator, where it must fail. A check that fails in the emulator proves that the
   emulator, and not libdist, is the reason why the tests that depend on this feature fail there.

   Usage: emulator_limits CHECK. The exit status is 0 if the feature works, 1 if it does not, and 2 if the check itself
   could not run. The program does not use libdist. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORKS 0
#define DIFFERS 1
#define CANNOT_RUN 2

static int cannot_run(const char *what)
{
    perror(what);
    return CANNOT_RUN;
}

/* Returns the exit status of a child, or CANNOT_RUN. */
static int status_of(pid_t child)
{
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        return cannot_run("child");
    }
    return WEXITSTATUS(status);
}

/* A page with MADV_WIPEONFORK is zero in a forked child. */
static int wipe_on_fork(void)
{
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t child;
    if (page == MAP_FAILED) {
        return cannot_run("mmap");
    }
    if (madvise(page, 4096, MADV_WIPEONFORK) != 0) {
        perror("madvise");
        return DIFFERS;
    }
    page[0] = 7;
    child = fork();
    if (child == 0) {
        printf("the child finds %d in the page\n", page[0]);
        fflush(stdout);
        _exit(page[0] == 0 ? WORKS : DIFFERS);
    }
    return status_of(child);
}

/* A process that has started no thread has one thread. */
static int single_thread(void)
{
    DIR *folder = opendir("/proc/self/task");
    struct dirent *entry;
    int threads = 0;
    if (folder == NULL) {
        return cannot_run("/proc/self/task");
    }
    while ((entry = readdir(folder)) != NULL) {
        threads += entry->d_name[0] != '.';
    }
    closedir(folder);
    printf("the process has %d threads\n", threads);
    return threads == 1 ? WORKS : DIFFERS;
}

/* Reads the time at which a process started: field 22 of its stat file. Returns 0 if this fails. */
static unsigned long long start_time(pid_t process)
{
    char name[64], text[1024];
    char *field;
    size_t length;
    int number;
    FILE *file;
    snprintf(name, sizeof name, "/proc/%d/stat", (int)process);
    file = fopen(name, "r");
    if (file == NULL) {
        return 0;
    }
    length = fread(text, 1, sizeof text - 1, file);
    text[length] = '\0';
    fclose(file);
    /* The name of the program, in parentheses, may contain spaces. */
    field = strrchr(text, ')');
    for (number = 2; field != NULL && number < 22; number++) {
        field = strchr(field + 1, ' ');
    }
    return field == NULL ? 0 : strtoull(field + 1, NULL, 10);
}

/* A process and its parent read the same start time of the process. The parent lives for some ticks of the clock
   before it forks, so that its own start time differs. */
static int same_start_time(void)
{
    unsigned long long own = 0, other = 0;
    struct timespec pause = { 0, 100000000 };
    int fds[2], release[2];
    pid_t child;
    if (pipe(fds) != 0 || pipe(release) != 0) {
        return cannot_run("pipe");
    }
    nanosleep(&pause, NULL);
    child = fork();
    if (child == 0) {
        char end;
        close(release[1]);
        own = start_time(getpid());
        /* The child lives until the parent has read its start time, or has ended. */
        _exit(write(fds[1], &own, sizeof own) == sizeof own && read(release[0], &end, 1) == 0 ? WORKS : CANNOT_RUN);
    }
    if (child < 0 || read(fds[0], &own, sizeof own) != sizeof own) {
        return cannot_run("child");
    }
    other = start_time(child);
    close(release[1]);
    printf("the child reads %llu, its parent reads %llu\n", own, other);
    if (status_of(child) != WORKS || own == 0 || other == 0) {
        return CANNOT_RUN;
    }
    return own == other ? WORKS : DIFFERS;
}

/* process_vm_readv reads memory; here that of the calling process itself. */
static int process_memory(void)
{
    char from = 5, into = 0;
    struct iovec local = { &into, 1 }, remote = { &from, 1 };
    ssize_t count = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    printf("process_vm_readv: %zd bytes, %s\n", count, count < 0 ? strerror(errno) : "no error");
    return count == 1 && into == 5 ? WORKS : DIFFERS;
}

struct check {
    const char *name;
    int (*run)(void);
};

static const struct check CHECKS[] = {
    { "wipe_on_fork", wipe_on_fork },
    { "single_thread", single_thread },
    { "same_start_time", same_start_time },
    { "process_memory", process_memory },
};

int main(int argc, char **argv)
{
    size_t i;
    for (i = 0; argc == 2 && i < sizeof CHECKS / sizeof CHECKS[0]; i++) {
        if (strcmp(argv[1], CHECKS[i].name) == 0) {
            return CHECKS[i].run();
        }
    }
    fprintf(stderr, "usage: emulator_limits CHECK\n");
    return CANNOT_RUN;
}
