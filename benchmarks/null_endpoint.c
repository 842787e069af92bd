/* An OpenAI-compatible endpoint with known timing, for measuring the load generator itself.
 *
 * One thread, epoll, one send for each event. The first token leaves `ttft` after the request was
 * read, the others `gap` apart in absolute time; with a gap of 0 as fast as the client reads.
 *
 * build: cc -O2 -o null_endpoint null_endpoint.c
 * usage: null_endpoint PORT TTFT_US GAP_US TOKENS [LOG]
 *
 * LOG holds, for each streamed request, little-endian uint64: plan index (the last 12 hexadecimal
 * digits of X-Request-Id, a UUID), time the request was read, number of events n, n write times; all times
 * CLOCK_MONOTONIC in ns.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_BODY (16 << 20)

struct stream {
    int fd, streaming, blocked, heap_at;
    uint64_t due, read_at, index;
    int sent, tokens;
    char *in;
    int in_len, in_cap;
    const char *rest;
    int rest_len;
    uint64_t *writes;
};

static uint64_t ttft_ns, gap_ns;
static int tokens_wanted;
static FILE *log_file;
static int epoll_fd;
static volatile sig_atomic_t stopping;

static struct stream **heap;
static int heap_len, heap_cap;

static char event_text[256], tail_text[1024];
static int event_len, tail_len;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

/* -- a heap of streams by due time ---------------------------------------------------------- */

static void place(int at, struct stream *s) {
    heap[at] = s;
    s->heap_at = at;
}

static void sift(int at) {
    struct stream *s = heap[at];
    while (at && heap[(at - 1) / 2]->due > s->due) {
        place(at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        int child = 2 * at + 1;
        if (child >= heap_len) break;
        if (child + 1 < heap_len && heap[child + 1]->due < heap[child]->due) child++;
        if (heap[child]->due >= s->due) break;
        place(at, heap[child]);
        at = child;
    }
    place(at, s);
}

static void schedule(struct stream *s, uint64_t due) {
    s->due = due;
    if (s->heap_at < 0) {
        if (heap_len == heap_cap) {
            heap_cap = heap_cap ? heap_cap * 2 : 1024;
            heap = realloc(heap, heap_cap * sizeof *heap);
        }
        place(heap_len++, s);
    }
    sift(s->heap_at);
}

static void unschedule(struct stream *s) {
    int at = s->heap_at;
    if (at < 0) return;
    s->heap_at = -1;
    struct stream *last = heap[--heap_len];
    if (last != s) {
        place(at, last);
        sift(at);
    }
}

/* -- replies --------------------------------------------------------------------------------- */

static int chunk(char *out, const char *json) {
    int n = strlen(json) + 8; /* "data: " and two newlines */
    return sprintf(out, "%x\r\ndata: %s\n\n\r\n", n, json);
}

static void build_texts(void) {
    event_len = chunk(event_text, "{\"id\":\"n\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"null\","
                      "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}");
}

static void drop(struct stream *s) {
    unschedule(s);
    close(s->fd);
    free(s->in);
    free(s->writes);
    free(s);
}

static void watch(struct stream *s, int op, int events) {
    struct epoll_event e = {.events = events, .data.ptr = s};
    epoll_ctl(epoll_fd, op, s->fd, &e);
}

/* Returns 0 when the connection is lost. What the kernel does not take waits in rest. */
static int put(struct stream *s, const char *text, int len) {
    ssize_t n = send(s->fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return 0;
    if (n < 0) n = 0;
    if (n < len) {
        s->rest = text + n;
        s->rest_len = len - n;
        if (!s->blocked) watch(s, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
        s->blocked = 1;
    }
    return 1;
}

static void write_log(struct stream *s) {
    if (!log_file) return;
    uint64_t head[3] = {s->index, s->read_at, (uint64_t)s->sent};
    fwrite(head, 8, 3, log_file);
    fwrite(s->writes, 8, s->sent, log_file);
}

static int answer(struct stream *s);

/* Send what is due; returns 0 when the connection is lost. */
static int advance(struct stream *s) {
    int burst = 0;
    while (!s->blocked) {
        if (s->sent < s->tokens) {
            s->writes[s->sent++] = now_ns();
            if (!put(s, event_text, event_len)) return 0;
            uint64_t next = s->read_at + ttft_ns + (uint64_t)s->sent * gap_ns;
            /* Without a gap, give the others their turn after a few events. */
            if (s->sent < s->tokens && (gap_ns || ++burst == 8)) {
                schedule(s, gap_ns ? next : now_ns());
                return 1;
            }
            continue;
        }
        unschedule(s);
        s->streaming = 0;
        write_log(s);
        if (!put(s, tail_text, tail_len)) return 0;
        return s->in_len ? answer(s) : 1;
    }
    unschedule(s);
    return 1;
}

static int answer(struct stream *s) {
    char *end = memmem(s->in, s->in_len, "\r\n\r\n", 4);
    if (!end) return 1;
    char *length = strcasestr(s->in, "content-length:");
    int body = length && length < end ? atoi(length + 15) : 0;
    int whole = (int)(end - s->in) + 4 + body;
    if (s->in_len < whole) return 1;
    s->read_at = now_ns();
    int is_get = !strncmp(s->in, "GET", 3);
    char *id = strcasestr(s->in, "x-request-id: ");
    s->index = id && id < end ? strtoull(id + 14 + 24, NULL, 16) : UINT64_MAX;
    memmove(s->in, s->in + whole, s->in_len - whole);
    s->in_len -= whole;
    s->in[s->in_len] = 0;
    if (is_get) {
        static const char models[] =
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 53\r\n\r\n"
            "{\"object\":\"list\",\"data\":[{\"id\":\"null\",\"object\":\"m\"}]}";
        return put(s, models, sizeof models - 1);
    }
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    if (!put(s, head, sizeof head - 1)) return 0;
    s->streaming = 1;
    s->sent = 0;
    s->tokens = tokens_wanted;
    s->writes = realloc(s->writes, 8 * (size_t)s->tokens);
    schedule(s, s->read_at + ttft_ns);
    return 1;
}

static int receive(struct stream *s) {
    if (s->in_len + 65536 + 1 > s->in_cap) {
        s->in_cap = s->in_len + 2 * 65536;
        s->in = realloc(s->in, s->in_cap);
    }
    ssize_t n = recv(s->fd, s->in + s->in_len, 65536, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN) || s->in_len > MAX_BODY) return 0;
    if (n > 0) s->in_len += n;
    s->in[s->in_len] = 0;
    return s->streaming ? 1 : answer(s);
}

static int resume(struct stream *s) {
    const char *text = s->rest;
    int len = s->rest_len;
    s->blocked = 0;
    s->rest_len = 0;
    if (!put(s, text, len)) return 0;
    if (s->blocked) return 1;
    watch(s, EPOLL_CTL_MOD, EPOLLIN);
    return s->streaming ? (schedule(s, now_ns()), 1) : 1;
}

static void on_signal(int number) {
    (void)number;
    stopping = 1;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: null_endpoint PORT TTFT_US GAP_US TOKENS [LOG]\n");
        return 2;
    }
    ttft_ns = strtoull(argv[2], NULL, 10) * 1000;
    gap_ns = strtoull(argv[3], NULL, 10) * 1000;
    tokens_wanted = atoi(argv[4]);
    log_file = argc > 5 ? fopen(argv[5], "wb") : NULL;
    build_texts();
    char usage[200], finish[200];
    sprintf(usage, "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":%d,\"total_tokens\":%d}}",
            tokens_wanted, tokens_wanted + 1);
    sprintf(finish, "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}");
    tail_len = chunk(tail_text, finish);
    tail_len += chunk(tail_text + tail_len, usage);
    tail_len += chunk(tail_text + tail_len, "[DONE]");
    tail_len += sprintf(tail_text + tail_len, "0\r\n\r\n");

    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) {
        perror("null_endpoint");
        return 2;
    }
    epoll_fd = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, ready[512];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
    while (!stopping) {
        struct timespec wait = {1, 0};
        uint64_t now = now_ns();
        if (heap_len) {
            uint64_t left = heap[0]->due > now ? heap[0]->due - now : 0;
            wait.tv_sec = left / 1000000000u;
            wait.tv_nsec = left % 1000000000u;
        }
        int n = epoll_pwait2(epoll_fd, ready, 512, &wait, NULL);
        for (int i = 0; i < n; i++) {
            struct stream *s = ready[i].data.ptr;
            if (!s) {
                int fd;
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    struct stream *fresh = calloc(1, sizeof *fresh);
                    fresh->fd = fd;
                    fresh->heap_at = -1;
                    watch(fresh, EPOLL_CTL_ADD, EPOLLIN);
                }
                continue;
            }
            int alive = 1;
            if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) alive = receive(s);
            if (alive && (ready[i].events & EPOLLOUT) && s->blocked) alive = resume(s);
            if (!alive) drop(s);
        }
        now = now_ns();
        for (int turn = 0; turn < 4096 && heap_len && heap[0]->due <= now; turn++) {
            struct stream *s = heap[0];
            if (!advance(s)) drop(s);
        }
    }
    if (log_file) fclose(log_file);
    return 0;
}
