// The emulator's scheduler with one kernel file, KERNEL_FILE, in it.

#include "emulator.h"

#if defined(__x86_64__)
// Leaves the registers that a call must keep on the stack at *from and goes on with those on the stack `to`.
extern "C" void switch_stack(void** from, void* to);
asm(".text\n"
    ".hidden switch_stack\n"
    ".globl switch_stack\n"
    ".type switch_stack, @function\n"
    "switch_stack:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\n"
    "movq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
    "ret\n");
#endif

namespace emulator {

static void switch_to(Context& from, Context& to) {
#if defined(__x86_64__)
    switch_stack(&from, to);
#else
    swapcontext(&from, &to);
#endif
}

// Makes `context` begin with `start` on that stack.
static void prepare(Context& context, std::vector<char>& stack, void (*start)()) {
#if defined(__x86_64__)
    // At its first instruction a function finds the stack 8 bytes off a multiple of 16.
    uintptr_t top = ((uintptr_t)stack.data() + stack.size()) / 16 * 16 - 8;
    void** entry = reinterpret_cast<void**>(top - 7 * sizeof(void*));
    entry[6] = reinterpret_cast<void*>(start);
    context = entry;
#else
    getcontext(&context);
    context.uc_stack.ss_sp = stack.data();
    context.uc_stack.ss_size = stack.size();
    context.uc_link = nullptr;
    makecontext(&context, start, 0);
#endif
}

static void (*kernel)(const void*);
static const void* arguments;

void hand_over(Among among) {
    unsigned from = current;
    if (among == Among::warp && far_apart) {
        do current = current % 32 == 31 || current + 1 == fibers.size() ? current / 32 * 32 : current + 1;
        while (fibers[current].done);
    } else {
        unsigned at = position[current];
        do at = at + 1 == sequence.size() ? 0 : at + 1;
        while (fibers[sequence[at]].done);
        current = sequence[at];
    }
    threadIdx = fibers[current].thread;
    if (current != from) switch_to(fibers[from].context, fibers[current].context);
    // Back again: whoever handed over to this fiber has set `current` and `threadIdx` to it.
}

Slots give(const void* own, size_t size) {
    Exchange& exchange = exchanges[current / 32];
    if (exchange.alive != std::min<size_t>(32, fibers.size() - current / 32 * 32))
        fail("an exchange in a warp of which some lanes have left");
    unsigned char(*slots)[32] = exchange.slots[exchange.barrier.generation % 2];
    std::memcpy(slots[current % 32], own, size);
    wait(exchange.barrier, exchange.alive, Among::warp);
    return slots;
}

static void run() {
    kernel(arguments);
    fibers[current].done = true;
    if (!fibers[current].filling.empty()) fail("a thread left with asynchronous copies that no group holds");
    for (const auto& group : fibers[current].ended)
        if (!group.empty()) fail("a thread left with asynchronous copies under way");
    --exchanges[current / 32].alive;
    --alive;
    idle_turns = 0;
    // A barrier that waited for this thread alone opens.
    if (block_barrier.arrived && block_barrier.arrived == alive) {
        block_barrier.arrived = 0;
        ++block_barrier.generation;
    }
    if (alive == 0) switch_to(fibers[current].context, scheduler);
    hand_over(Among::block);
    fail("a fiber that ended went on");
}

static void run_block() {
    static const size_t stack_size = 64 * 1024;
    unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    // NaN as f32 and as bf16.
    std::memset(shared_memory, 0xff, sizeof shared_memory);
    fibers.resize(threads);
    exchanges.assign((threads + 31) / 32, {});
    block_barrier = {};
    alive = threads;
    idle_turns = 0;
    for (unsigned index = 0; index < threads; ++index) {
        Fiber& fiber = fibers[index];
        fiber.stack.resize(stack_size);
        fiber.thread = {index % blockDim.x, index / blockDim.x % blockDim.y, index / blockDim.x / blockDim.y};
        fiber.done = false;
        fiber.filling.clear();
        fiber.ended.clear();
        ++exchanges[index / 32].alive;
        prepare(fiber.context, fiber.stack, run);
    }
    current = sequence[0];
    threadIdx = fibers[current].thread;
    switch_to(scheduler, fibers[current].context);
}

}  // namespace emulator

// Runs a kernel over a grid. `order` 0: threads and blocks by number, all in step; 1: the other way round, warps far apart;
// others: shuffled, warps far apart. Asynchronous copies are done when they are waited for, in order 1 when they begin.
extern "C" void emulate(void (*kernel)(const void*), const void* arguments, const unsigned* grid, const unsigned* block,
                        unsigned order) {
    using namespace emulator;
    emulator::kernel = kernel;
    emulator::arguments = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    unsigned threads = block[0] * block[1] * block[2];
    sequence.resize(threads);
    position.resize(threads);
    for (unsigned index = 0; index < threads; ++index) sequence[index] = order == 1 ? threads - 1 - index : index;
    far_apart = order > 0;
    copies_at_once = order == 1;
    uint64_t state = order;
    for (unsigned index = threads; order > 1 && index > 1; --index) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        std::swap(sequence[index - 1], sequence[(state >> 33) % index]);
    }
    for (unsigned index = 0; index < threads; ++index) position[sequence[index]] = index;
    unsigned blocks = grid[0] * grid[1] * grid[2];
    for (unsigned count = 0; count < blocks; ++count) {
        unsigned index = order == 0 ? count : blocks - 1 - count;
        blockIdx = {index % grid[0], index / grid[0] % grid[1], index / grid[0] / grid[1]};
        run_block();
    }
}

// The words of a kernel's struct, with what fills up between its fields.
extern "C" void words(const void* arguments, uint64_t* to, unsigned count) { std::memcpy(to, arguments, 8 * count); }

// The name of a kernel of the file, null behind the last.
extern "C" const char* kernel_name(unsigned index) {
    return index < emulator::names.size() ? emulator::names[index] : nullptr;
}

#include "prelude.cuh"
#include "mma.cuh"
#include KERNEL_FILE
