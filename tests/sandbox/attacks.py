"""What code that nobody vetted may try, each as a program that says whether it got through.

The numbers are those of the list that the room's README names. A program prints THROUGH if it did
what it must not, and anything else if it could not.
"""

from dataclasses import dataclass

PRELUDE = """
import ctypes, errno, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
arm = os.uname().machine == "aarch64"
def number(x86, aarch):
    return aarch if arm else x86
def attempt(what):
    try:
        what()
    except (OSError, ValueError) as error:
        print("stopped:", error)
    else:
        print("THROUGH")
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attempt. `code`: Python, after the prelude."""

    number: int
    name: str
    code: str


ATTACKS = [
    Attack(
        9,
        "inherited_descriptors",
        """
found = []
for fd in os.listdir("/proc/self/fd"):
    try:
        where = os.readlink("/proc/self/fd/" + fd)
    except OSError:
        continue
    if int(fd) > 2 and not where.startswith("/proc/"):
        found.append(where)
print("THROUGH" if found else "stopped", found)
""",
    ),
    Attack(
        9,
        "escape_by_a_descriptor_of_the_first_process",
        """
def escape():
    for fd in os.listdir("/proc/1/fd"):
        os.stat("/proc/1/fd/" + fd)
attempt(escape)
""",
    ),
    Attack(13, "setuid_program", """
import subprocess
os.chmod
open("/tmp/who", "wb").write(open("/usr/bin/id", "rb").read())
os.chmod("/tmp/who", 0o6755)
status = open("/proc/self/status").read()
print("stopped" if "NoNewPrivs:\\t1" in status else "THROUGH")
"""),
    Attack(14, "device_node", """
attempt(lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(254, 0)))
"""),
    Attack(14, "character_device", """
attempt(lambda: os.mknod("/tmp/mem", 0o20600, os.makedev(1, 1)))
"""),
    Attack(15, "forged_overlay_attributes", """
os.mkdir("/workspace/d")
attempt(lambda: os.setxattr("/workspace/d", "trusted.overlay.opaque", b"y"))
"""),
    Attack(16, "ptrace", """
attempt(lambda: call(number(101, 117), 16, 1, 0, 0))
"""),
    Attack(16, "read_memory_of_the_first_process", """
attempt(lambda: open("/proc/1/mem", "rb").read(1))
"""),
    Attack(16, "process_vm_readv", """
attempt(lambda: call(number(310, 270), 1, None, 0, None, 0, 0))
"""),
    Attack(16, "pidfd_getfd", """
def steal():
    fd = os.pidfd_open(1)
    call(438, fd, 0, 0)
attempt(steal)
"""),
    Attack(17, "keyring", """
attempt(lambda: call(number(250, 219), 0, -3, 1))
"""),
    Attack(18, "mount_old", """
attempt(lambda: call(number(165, 40), b"none", b"/tmp", b"tmpfs", 0, None))
"""),
    Attack(18, "mount_new", """
attempt(lambda: call(430, b"tmpfs", 0))
"""),
    Attack(18, "open_tree", """
attempt(lambda: call(428, -100, b"/", 1))
"""),
    Attack(18, "chroot", """
attempt(lambda: os.chroot("/tmp"))
"""),
    Attack(18, "pivot_root", """
attempt(lambda: call(number(155, 41), b".", b"."))
"""),
    Attack(18, "unmount", """
attempt(lambda: call(number(166, 39), b"/proc/sys", 2))
"""),
    Attack(19, "new_user_namespace", """
attempt(lambda: call(number(272, 97), 0x10000000))
"""),
    Attack(19, "clone_with_namespaces", """
def clone():
    pid = call(number(56, 220), 0x10000011, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
attempt(clone)
"""),
    Attack(19, "clone3_with_namespaces", """
def clone():
    arguments = struct.pack("11Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    pid = call(435, arguments, len(arguments))
    if pid == 0:
        os._exit(0)
attempt(clone)
"""),
    Attack(19, "enter_a_namespace", """
def enter():
    fd = os.open("/proc/1/ns/mnt", os.O_RDONLY)
    call(number(308, 268), fd, 0)
attempt(enter)
"""),
    Attack(20, "bpf", "attempt(lambda: call(number(321, 280), 0, None, 0))"),
    Attack(20, "perf_event_open", "attempt(lambda: call(number(298, 241), None, 0, -1, -1, 0))"),
    Attack(20, "userfaultfd", "attempt(lambda: call(number(323, 282), 0))"),
    Attack(20, "io_uring", "attempt(lambda: call(425, 1, ctypes.create_string_buffer(120)))"),
    Attack(20, "asynchronous_io", "attempt(lambda: call(number(206, 0), 8, bytes(8)))"),
    Attack(36, "modules_and_command_line_of_the_host", """
for name in ("modules", "cmdline", "partitions", "interrupts"):
    try:
        print("THROUGH" if open("/proc/" + name).read(1) else "stopped")
    except OSError as error:
        print("stopped", error)
"""),
    Attack(20, "load_a_module", "attempt(lambda: call(number(313, 273), 0, b'', 0))"),
    Attack(20, "kexec", "attempt(lambda: call(number(246, 104), 0, 0, None, 0))"),
    Attack(20, "a_call_newer_than_the_filter", """
try:
    call(462, 0, 0, 0)
    print("THROUGH")
except OSError as error:
    print("THROUGH" if error.errno != errno.ENOSYS else "stopped")
"""),
    Attack(21, "open_by_handle", """
attempt(lambda: call(number(304, 265), -100, ctypes.create_string_buffer(136), 0))
"""),
    Attack(22, "connect_out", """
def connect():
    s = socket.socket()
    s.settimeout(2)
    s.connect(("192.0.2.1", 80))
attempt(connect)
"""),
    Attack(22, "send_a_datagram", """
def send():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.sendto(b"x", ("192.0.2.1", 53))
attempt(send)
"""),
    Attack(22, "raw_socket", """
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
"""),
    Attack(23, "metadata_service", """
def connect():
    s = socket.socket()
    s.settimeout(2)
    s.connect(("169.254.169.254", 80))
attempt(connect)
"""),
    Attack(24, "vsock", "attempt(lambda: socket.socket(40, socket.SOCK_STREAM))"),
    Attack(24, "packet_socket", "attempt(lambda: socket.socket(17, socket.SOCK_RAW))"),
    Attack(24, "crypto_socket", "attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET))"),
    Attack(24, "netlink", "attempt(lambda: socket.socket(16, socket.SOCK_RAW))"),
    Attack(24, "socket_pair_of_another_family", "attempt(lambda: socket.socketpair(17, 2))"),
    Attack(26, "shared_memory_of_the_host", """
print("THROUGH" if os.listdir("/dev/shm") else "stopped")
"""),
    Attack(26, "system_v_ipc_of_the_host", """
print("THROUGH" if len(open("/proc/sysvipc/shm").readlines()) > 1 else "stopped")
"""),
    Attack(27, "other_processes", """
print("THROUGH" if [p for p in os.listdir("/proc") if p.isdigit() and int(p) > 64] else "stopped")
"""),
    Attack(29, "environment_of_the_first_process", """
attempt(lambda: open("/proc/1/environ").read())
"""),
    Attack(29, "secrets_in_the_environment", """
known = {"PATH", "HOME", "LANG", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
print("THROUGH" if set(os.environ) - known else "stopped", sorted(os.environ))
"""),
    Attack(36, "kernel_memory", "attempt(lambda: os.pread(os.open('/proc/kcore', 0), 1, 0)[0])"),
    Attack(36, "sysrq", """
def press():
    with open("/proc/sysrq-trigger", "w") as file:
        file.write("h")
try:
    press()
    print("THROUGH" if os.stat("/proc/sysrq-trigger").st_rdev == 0 else "stopped: covered")
except OSError as error:
    print("stopped:", error)
"""),
    Attack(36, "kernel_settings", """
attempt(lambda: open("/proc/sys/kernel/hostname", "w").write("x"))
"""),
    Attack(36, "kernel_symbols", """
def read():
    if not open("/proc/kallsyms").read(1):
        raise ValueError("empty")
attempt(read)
"""),
    Attack(36, "host_paths_in_the_mounts", """
print("THROUGH" if "sandboxes" in open("/proc/self/mountinfo").read() else "stopped")
"""),
    Attack(37, "type_into_a_terminal", """
import fcntl
master, slave = os.openpty()
attempt(lambda: fcntl.ioctl(slave, 0x5412, b"x"))
"""),
    Attack(37, "controlling_terminal", "attempt(lambda: os.open('/dev/tty', os.O_RDWR))"),
    Attack(0, "host_name", "attempt(lambda: call(number(170, 161), b'evil', 4))"),
    Attack(0, "own_host_name_is_shown", """
print("stopped" if os.uname().nodename == "sandbox" else "THROUGH")
"""),
    Attack(0, "set_the_clock", "attempt(lambda: call(number(227, 112), 0, bytes(16)))"),
    Attack(0, "reboot", "attempt(lambda: call(number(169, 142), 0xfee1dead, 672274793, 0, None))"),
    Attack(0, "get_capabilities_back", """
def regain():
    header = struct.pack("Ii", 0x20080522, 0)
    full = struct.pack("6I", 0xffffffff, 0xffffffff, 0, 0x1ff, 0x1ff, 0)
    if libc.capset(header, full) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
attempt(regain)
"""),
    Attack(0, "accounts_of_the_host", "attempt(lambda: open('/etc/shadow').read())"),
    Attack(0, "files_of_the_host", """
seen = [p for p in ("/lost+found", "/var/lib/postgresql", "/boot") if os.path.exists(p)]
print("THROUGH" if seen else "stopped", seen)
"""),
    Attack(0, "kernel_filesystem", "attempt(lambda: os.stat('/sys/kernel'))"),
    Attack(0, "write_to_a_device_node_of_the_host", """
import stat
odd = [n for n in os.listdir("/dev") if stat.S_ISBLK(os.lstat("/dev/" + n).st_mode)]
print("THROUGH" if odd else "stopped", odd)
"""),
]  # fmt: skip
