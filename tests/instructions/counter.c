// Counts the instructions that a thread executes in one mapping of code, and nothing outside of it.
//
// While the thread is elsewhere the mapping is not executable, so that every way in is a fault at the first instruction.
// Inside, a block (what runs from an address up to the next branch) is single-stepped by the trap flag the first time;
// then its branch is replaced by a breakpoint, so that from then on the block runs at full speed and traps once. The
// handler adds the block's length and emulates the branch, or has it executed in a single step where it is indirect.
// A repeated string instruction counts as one instruction.
//
// Linux on x86-64 only. State is global: one counter in a process.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { trap_flag = 0x100, breakpoint = 0xcc };
enum { inside = PROT_READ | PROT_WRITE | PROT_EXEC, outside = PROT_READ | PROT_WRITE, untouched = PROT_READ | PROT_EXEC };

typedef uint8_t byte;
typedef uintptr_t address;

// Of a block, at the offset of its first instruction; no length: not known yet.
typedef struct {
  uint32_t branch;  // the offset of its last instruction
  uint32_t length;  // in instructions, the branch included
} Block;

static byte *code;         // of the mapping
static size_t code_bytes;
static byte *original;     // a copy of it without breakpoints
static Block *blocks;
static uint32_t *branches; // offsets of the branches that known blocks end with
static size_t known;       // their number
static int steps_only;     // no breakpoints: every instruction in a single step
static pid_t thread;
static uint64_t counted;

static size_t start, at;   // the block that is being executed, and the instruction that is being single-stepped
static uint32_t length;    // instructions of the block that were single-stepped
static enum { running, stepping, branching } doing;
static struct sigaction trap_before, fault_before;

static void die(const char *why) {
  if (write(STDERR_FILENO, why, strlen(why)) < 0) _exit(70);
  _exit(70);
}

static int is_branch(const byte *instruction, const byte **opcode) {
  const byte *b = instruction;
  while (*b == 0x66 || *b == 0xf2 || *b == 0xf3 || *b == 0x2e || *b == 0x3e || (*b & 0xf0) == 0x40) ++b;
  *opcode = b;
  if (*b == 0x0f) return (b[1] & 0xf0) == 0x80;  // jcc near
  if (*b == 0xff) return (b[1] >> 3 & 7) >= 2 && (b[1] >> 3 & 7) <= 5;  // indirect call and jmp
  return (*b & 0xf0) == 0x70 || (*b >= 0xe0 && *b <= 0xe3) ||  // jcc short; loop, jrcxz
         *b == 0xe8 || *b == 0xe9 || *b == 0xeb || *b == 0xc2 || *b == 0xc3;  // call, jmp, ret
}

// The sixteen conditions of jcc: pairs of a test and its opposite.
static int holds(int condition, greg_t flags) {
  const int carry = flags & 1, parity = flags >> 2 & 1, zero = flags >> 6 & 1, sign = flags >> 7 & 1;
  const int overflow = flags >> 11 & 1;
  const int tests[] = {overflow, carry, zero, carry | zero, sign, parity, sign ^ overflow, zero | (sign ^ overflow)};
  return tests[condition >> 1] ^ (condition & 1);
}

static int32_t word(const byte *from) {
  int32_t value;
  memcpy(&value, from, sizeof value);
  return value;
}

// Where the branch at `offset` leads, done as the CPU would; 0: this needs the CPU.
static address follow(size_t offset, greg_t *registers) {
  const byte *opcode, *instruction = original + offset;
  is_branch(instruction, &opcode);
  const address here = (address)(code + (opcode - original));  // of the opcode behind its prefixes
  if ((*opcode & 0xf0) == 0x70) return here + 2 + (holds(*opcode & 15, registers[REG_EFL]) ? (int8_t)opcode[1] : 0);
  if (*opcode == 0x0f) return here + 6 + (holds(opcode[1] & 15, registers[REG_EFL]) ? word(opcode + 2) : 0);
  if (*opcode == 0xeb) return here + 2 + (int8_t)opcode[1];
  if (*opcode == 0xe9) return here + 5 + word(opcode + 1);
  if (*opcode == 0xe8) {
    registers[REG_RSP] -= 8;
    *(address *)registers[REG_RSP] = here + 5;
    return here + 5 + word(opcode + 1);
  }
  if (*opcode == 0xc3) {
    registers[REG_RSP] += 8;
    return *(address *)(registers[REG_RSP] - 8);
  }
  return 0;
}

static void protect(int how) {
  if (mprotect(code, code_bytes, how)) die("counter: mprotect failed\n");
}

static void step(greg_t *registers) { registers[REG_EFL] |= trap_flag; }

static void take_branch(greg_t *registers);

// The thread is about to execute the instruction at `to`, the first after a branch.
static void arrive(address to, greg_t *registers) {
  registers[REG_RIP] = (greg_t)to;
  registers[REG_EFL] &= ~trap_flag;
  if (to - (address)code >= code_bytes) {
    protect(outside);
    return;
  }
  start = at = to - (address)code;
  length = 0;
  if (blocks[start].length) {
    doing = running;
    return;
  }
  const byte *opcode;
  doing = stepping;
  if (is_branch(original + at, &opcode))
    take_branch(registers);
  else
    step(registers);
}

// The thread is about to execute the branch at `at`, the end of a block.
static void take_branch(greg_t *registers) {
  if (doing == stepping) {
    ++length;
    if (!steps_only) {
      blocks[start] = (Block){(uint32_t)at, length};
      if (code[at] != breakpoint) branches[known++] = (uint32_t)at;
      code[at] = breakpoint;
    }
  }
  counted += length;
  const address to = follow(at, registers);
  if (to) {
    arrive(to, registers);
    return;
  }
  code[at] = original[at];
  registers[REG_RIP] = (greg_t)(code + at);
  doing = branching;
  step(registers);
}

static void on_trap(int signal, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const size_t offset = (address)registers[REG_RIP] - (address)code;
  const byte *opcode;
  (void)signal;
  if (syscall(SYS_gettid) != thread) die("counter: another thread executes the code that is counted\n");
  if (info->si_code != TRAP_TRACE) {  // a breakpoint, which the instruction pointer is past
    at = offset - 1;
    if (at >= code_bytes || code[at] == original[at] || blocks[start].branch != at) die("counter: a foreign breakpoint\n");
    length = blocks[start].length;
    take_branch(registers);
  } else if (doing == branching) {
    if (!steps_only) code[at] = breakpoint;
    arrive((address)registers[REG_RIP], registers);
  } else {
    if (offset == at) return;  // within a repeated string instruction
    ++length;
    at = offset;
    if (is_branch(original + at, &opcode)) take_branch(registers);
  }
}

static void on_fault(int signal, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const address to = (address)registers[REG_RIP];
  if (to - (address)code >= code_bytes || (address)info->si_addr != to) {  // not ours: happens again without us
    sigaction(signal, &fault_before, NULL);
    return;
  }
  if (syscall(SYS_gettid) != thread) die("counter: another thread executes the code that is counted\n");
  protect(inside);
  arrive(to, registers);
}

// Prepares to count in the mapping [first, first + bytes). Returns 0, or the error of what the system refused.
int counter_open(void *first, size_t bytes, int only_steps) {
  code = first;
  code_bytes = bytes;
  steps_only = only_steps;
  known = 0;
  original = malloc(bytes + 16);  // the last instruction may be looked at beyond its end
  blocks = calloc(bytes, sizeof *blocks);
  branches = calloc(bytes, sizeof *branches);
  if (!original || !blocks || !branches) return ENOMEM;
  memcpy(original, code, bytes);
  struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
  struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
  if (mprotect(code, code_bytes, inside) || sigaction(SIGTRAP, &trap, &trap_before) ||
      sigaction(SIGSEGV, &fault, &fault_before))
    return errno;
  return 0;
}

// From here on the calling thread is counted, until counter_end().
void counter_begin(void) {
  counted = 0;
  thread = (pid_t)syscall(SYS_gettid);
  for (size_t i = 0; i < known; ++i) code[branches[i]] = breakpoint;
  protect(outside);
}

// The instructions since then. The code is as it was, for all that is not counted.
uint64_t counter_end(void) {
  protect(inside);
  for (size_t i = 0; i < known; ++i) code[branches[i]] = original[branches[i]];
  return counted;
}

void counter_close(void) {
  protect(untouched);
  sigaction(SIGTRAP, &trap_before, NULL);
  sigaction(SIGSEGV, &fault_before, NULL);
  free(original);
  free(blocks);
  free(branches);
}
