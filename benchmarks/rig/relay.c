/* A relay that looks at nothing: what a proxy costs its neighbours whatever it does.
 *
 *   relay LISTEN_PORT UPSTREAM_PORT        both on 127.0.0.1
 *
 * One thread, one epoll instance, one buffer: what comes from one side is sent to the other at once, and while that
 * takes no more, nothing is read. No frame is known, nothing is counted, nothing is written anywhere. It has no use
 * but to be measured beside (`benchmarks/rig/variants.py`): Kafka's tools are slower behind it than without it, and what
 * they lose there is not the price of what a proxy does with the bytes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUFFER_BYTES (256 * 1024) /* as kquota reads */
#define MOST_EVENTS 64

struct side {
    int socket;
    struct side *other;
    char *held;  /* what the other side did not take yet, of this side's */
    size_t held_bytes;
    int over;    /* this side has sent everything */
    int closed;  /* the pair is closed; freed once no event of this round can name it */
    struct side *next_closed;
};

static int epoll;
static char buffer[BUFFER_BYTES];
static struct side *closed;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static struct sockaddr_in local(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* Read while the other side takes what was read; wait for room there while it does not. */
static void watch(struct side *side, int operation) {
    struct epoll_event event = {.data.ptr = side};
    event.events = (side->held_bytes || side->over ? 0 : EPOLLIN) | (side->other->held_bytes ? EPOLLOUT : 0);
    if (epoll_ctl(epoll, operation, side->socket, &event) != 0) die("epoll_ctl");
}

static void close_pair(struct side *side) {
    struct side *both[2] = {side, side->other};
    for (int at = 0; at < 2; at++) {
        close(both[at]->socket);
        both[at]->closed = 1;
        both[at]->next_closed = closed;
        closed = both[at];
    }
}

static void free_closed(void) {
    while (closed) {
        struct side *side = closed;
        closed = side->next_closed;
        free(side->held);
        free(side);
    }
}

static void take(struct side *side) {
    ssize_t count = recv(side->socket, buffer, sizeof buffer, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count < 0) {
        close_pair(side);
        return;
    }
    if (count == 0) {
        side->over = 1; /* nothing of it is held, else it would not have been read */
        shutdown(side->other->socket, SHUT_WR);
        if (side->other->over) close_pair(side);
        else watch(side, EPOLL_CTL_MOD);
        return;
    }
    ssize_t sent = send(side->other->socket, buffer, (size_t)count, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        close_pair(side);
        return;
    }
    if (sent < 0) sent = 0;
    if (sent == count) return;
    side->held_bytes = (size_t)(count - sent);
    side->held = malloc(side->held_bytes);
    if (!side->held) die("malloc");
    memcpy(side->held, buffer + sent, side->held_bytes);
    watch(side, EPOLL_CTL_MOD);
    watch(side->other, EPOLL_CTL_MOD);
}

/* There is room at `side` for what the other one's bytes had to wait for. */
static void give(struct side *side) {
    struct side *from = side->other;
    ssize_t sent = send(side->socket, from->held, from->held_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent < 0) {
        close_pair(side);
        return;
    }
    from->held_bytes -= (size_t)sent;
    memmove(from->held, from->held + sent, from->held_bytes);
    if (from->held_bytes) return;
    free(from->held);
    from->held = NULL;
    watch(from, EPOLL_CTL_MOD);
    watch(side, EPOLL_CTL_MOD);
}

static void welcome(int listener, const struct sockaddr_in *upstream) {
    int ends[2] = {accept4(listener, NULL, NULL, SOCK_CLOEXEC), -1};
    if (ends[0] < 0) return;
    ends[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (ends[1] < 0 || connect(ends[1], (const struct sockaddr *)upstream, sizeof *upstream) != 0) {
        perror("upstream");
        close(ends[0]);
        if (ends[1] >= 0) close(ends[1]);
        return;
    }
    struct side *sides[2] = {calloc(1, sizeof(struct side)), calloc(1, sizeof(struct side))};
    if (!sides[0] || !sides[1]) die("calloc");
    int one = 1;
    for (int at = 0; at < 2; at++) {
        setsockopt(ends[at], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        sides[at]->socket = ends[at];
        sides[at]->other = sides[1 - at];
    }
    for (int at = 0; at < 2; at++) watch(sides[at], EPOLL_CTL_ADD);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: relay LISTEN_PORT UPSTREAM_PORT\n");
        return 2;
    }
    struct sockaddr_in here = local(arguments[1]), upstream = local(arguments[2]);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    if (listener < 0) die("socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) != 0) die("bind");
    if (listen(listener, 128) != 0) die("listen");
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[MOST_EVENTS];
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) != 0) die("epoll");
    for (;;) {
        int found = epoll_wait(epoll, events, MOST_EVENTS, -1);
        if (found < 0 && errno != EINTR) die("epoll_wait");
        for (int at = 0; at < found; at++) {
            struct side *side = events[at].data.ptr;
            if (!side) {
                welcome(listener, &upstream);
                continue;
            }
            if (!side->closed && (events[at].events & EPOLLOUT) && side->other->held_bytes) give(side);
            if (!side->closed && !side->held_bytes && !side->over
                && (events[at].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) take(side);
            else if (!side->closed && (events[at].events & EPOLLERR)) close_pair(side); /* reset while it had to wait */
        }
        free_closed();
    }
}
