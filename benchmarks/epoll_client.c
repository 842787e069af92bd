/* The least that a client can do for the same load: what the load generator is compared with.
 *
 * One thread, epoll, one recv for each readable socket. It finds the ends of events and the end of the
 * reply, and notes when each request was sent and when its first event was read. No JSON, no records of
 * events, no faults: a server that closes a connection ends it.
 *
 * build: cc -O2 -o epoll_client epoll_client.c -lm
 * usage: epoll_client PORT CONNECTIONS REQUESTS_PER_S constant|poisson SECONDS LOG
 *
 * CONNECTIONS send one request after the other; 0 for REQUESTS_PER_S at constant or exponential gaps. LOG holds, for each
 * answered request, little-endian uint64: its index, when it was due, sent and first answered (CLOCK_MONOTONIC, ns).
 * Prints: events, seconds from the first request to the last answer, seconds of CPU.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_IDLE 65536

struct connection {
    int fd;
    uint64_t index, due_at, sent_at, first_at;
};

static const char body[] =
    "{\"model\":\"null\",\"messages\":[{\"role\":\"user\",\"content\":\"hello world\"}],\"max_tokens\":1,\"stream\":true}";

static int port, epoll_fd, idle_count, in_flight;
static struct connection *idle[MAX_IDLE];
static uint64_t next_index, events;
static FILE *log_file;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static struct connection *open_connection(void) {
    struct connection *c = calloc(1, sizeof *c);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &e);
    return c;
}

static void send_request(struct connection *c, uint64_t due_at) {
    char request[1024];
    c->index = next_index++;
    int length = snprintf(request, sizeof request,
                          "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nX-Request-Id: "
                          "00000000-0000-4000-8000-%012lx\r\n"
                          "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                          port, c->index, sizeof body - 1, body);
    c->due_at = due_at;
    c->first_at = 0;
    c->sent_at = now_ns();
    if (send(c->fd, request, length, MSG_NOSIGNAL) != length) fail("send");
    in_flight++;
}

/* Whether the reply has ended. */
static int receive(struct connection *c) {
    static char data[1 << 16];
    ssize_t count = recv(c->fd, data, sizeof data, 0);
    uint64_t read_at = now_ns();
    if (count <= 0) fail("recv");
    for (char *at = data, *end = data + count; (at = memmem(at, end - at, "\n\n", 2)); at += 2) {
        events++;
        if (!c->first_at) c->first_at = read_at;
    }
    if (count < 5 || memcmp(data + count - 5, "0\r\n\r\n", 5)) return 0;
    /* The reply ends with its finish reason, its usage and [DONE], which are no tokens. */
    events -= 3;
    uint64_t line[4] = {c->index, c->due_at, c->sent_at, c->first_at};
    fwrite(line, 8, 4, log_file);
    in_flight--;
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: epoll_client PORT CONNECTIONS REQUESTS_PER_S constant|poisson SECONDS LOG\n");
        return 2;
    }
    port = atoi(argv[1]);
    int connections = atoi(argv[2]);
    double rate = atof(argv[3]);
    int poisson = !strcmp(argv[4], "poisson");
    srand48(1);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (!(log_file = fopen(argv[6], "wb"))) fail(argv[6]);
    epoll_fd = epoll_create1(0);
    for (int i = 0; i < connections && i < MAX_IDLE; i++) idle[idle_count++] = open_connection();
    uint64_t began = now_ns(), ends = began + (uint64_t)(atof(argv[5]) * 1e9), due = began, last = began;
    if (connections)
        while (idle_count) send_request(idle[--idle_count], began);
    for (;;) {
        uint64_t now = now_ns();
        if ((now >= ends && !in_flight) || now > ends + 10000000000u) break;
        struct timespec wait = {0, 100000000};
        if (!connections && now < ends) {
            while (due <= now) {
                send_request(idle_count ? idle[--idle_count] : open_connection(), due);
                due += (uint64_t)(1e9 / rate * (poisson ? -log(1 - drand48()) : 1));
            }
            if (due - now < 100000000u) wait.tv_nsec = due - now;
        }
        struct epoll_event ready[512];
        int count = epoll_pwait2(epoll_fd, ready, 512, &wait, NULL);
        for (int i = 0; i < count; i++) {
            struct connection *c = ready[i].data.ptr;
            if (!receive(c)) continue;
            last = now_ns();
            if (connections && last < ends)
                send_request(c, last);
            else if (idle_count < MAX_IDLE)
                idle[idle_count++] = c;
        }
    }
    fclose(log_file);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu_s = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    printf("%lu %.6f %.6f\n", events, (last - began) / 1e9, cpu_s);
    return 0;
}
