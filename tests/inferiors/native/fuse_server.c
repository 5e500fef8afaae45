/* A FUSE file system with one file, /page, which can be looked up, opened and mapped, and never read. Its requests
   (linux/fuse.h) are answered by hand, for there may be no libfuse. Argument: where to mount it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOT = 1, FILE_NODE = 2, SIZE = 65536 };
static int device;
static char request[1 << 20];

static void describe(struct fuse_attr *attribute, unsigned long node)
{
    attribute->ino = node;
    attribute->nlink = 1;
    attribute->blksize = 4096;
    attribute->mode = node == ROOT ? S_IFDIR | 0755 : S_IFREG | 0755;
    attribute->size = node == ROOT ? 0 : SIZE;
}

static void answer(unsigned long number, int error, const void *body, size_t size)
{
    char reply[4096];
    struct fuse_out_header header = {.len = sizeof header + size, .error = -error, .unique = number};
    memcpy(reply, &header, sizeof header);
    memcpy(reply + sizeof header, body, size);
    if (write(device, reply, header.len) < 0 && errno != ENOENT)
        perror("answer");
}

static void serve(const struct fuse_in_header *asked)
{
    struct fuse_init_out begun = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_readahead = SIZE, .max_write = 4096};
    struct fuse_entry_out entry = {.nodeid = FILE_NODE, .entry_valid = 1000, .attr_valid = 1000};
    struct fuse_attr_out attributes = {.attr_valid = 1000};
    struct fuse_open_out opened = {.fh = 1, .open_flags = FOPEN_KEEP_CACHE};
    const struct fuse_open_in *how = (const void *)(asked + 1);
    if (asked->opcode == FUSE_OPEN && (how->flags & O_SYNC) == O_SYNC)
        opened.open_flags = FOPEN_DIRECT_IO; /* its mmap waits for all pages that are being read, with mmap_lock held */
    switch (asked->opcode) {
    case FUSE_INIT:
        answer(asked->unique, 0, &begun, sizeof begun);
        puts("mounted");
        fflush(stdout);
        break;
    case FUSE_LOOKUP:
        describe(&entry.attr, FILE_NODE);
        answer(asked->unique, 0, &entry, sizeof entry);
        break;
    case FUSE_GETATTR:
        describe(&attributes.attr, asked->nodeid);
        answer(asked->unique, 0, &attributes, sizeof attributes);
        break;
    case FUSE_OPEN:
    case FUSE_OPENDIR:
        answer(asked->unique, 0, &opened, sizeof opened);
        break;
    case FUSE_READ:
    case FUSE_INTERRUPT:
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
        break;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
        answer(asked->unique, 0, "", 0);
        break;
    default:
        answer(asked->unique, ENOSYS, "", 0);
    }
}

int main(int count, char **arguments)
{
    char options[64];
    if (count != 2 || (device = open("/dev/fuse", O_RDWR | O_CLOEXEC)) < 0)
        return perror("/dev/fuse"), 1;
    prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d", device, getuid(), getgid());
    if (mount("silent", arguments[1], "fuse.silent", MS_NOSUID | MS_NODEV, options) < 0)
        return perror("mount"), 1;
    for (;;) {
        if (read(device, request, sizeof request) > 0)
            serve((const struct fuse_in_header *)request);
        else if (errno != EINTR && errno != ENOENT)
            return 0;
    }
}
