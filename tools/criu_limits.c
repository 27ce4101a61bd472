/* Lets CRIU read the limits of other users' processes where CAP_SYS_RESOURCE is missing.
 *
 * The kernel asks for that capability in prlimit(2) of a process of another user, even to read;
 * /proc/PID/limits says the same to root without it. Preloaded into CRIU alone (see criu.py): when
 * a read is refused, it is answered from there. Writes are refused as before.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const names[] = {
	[RLIMIT_CPU] = "Max cpu time",		 [RLIMIT_FSIZE] = "Max file size",
	[RLIMIT_DATA] = "Max data size",	 [RLIMIT_STACK] = "Max stack size",
	[RLIMIT_CORE] = "Max core file size",	 [RLIMIT_RSS] = "Max resident set",
	[RLIMIT_NPROC] = "Max processes",	 [RLIMIT_NOFILE] = "Max open files",
	[RLIMIT_MEMLOCK] = "Max locked memory",	 [RLIMIT_AS] = "Max address space",
	[RLIMIT_LOCKS] = "Max file locks",	 [RLIMIT_SIGPENDING] = "Max pending signals",
	[RLIMIT_MSGQUEUE] = "Max msgqueue size", [RLIMIT_NICE] = "Max nice priority",
	[RLIMIT_RTPRIO] = "Max realtime priority", [RLIMIT_RTTIME] = "Max realtime timeout",
};

static unsigned long long value_of(const char *word)
{
	return strcmp(word, "unlimited") == 0 ? ~0ULL : strtoull(word, NULL, 10);
}

static int from_proc(int pid, unsigned kind, unsigned long long *limit)
{
	char path[64], line[256], soft[32], hard[32];
	size_t length = strlen(names[kind]);
	int result = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/limits", pid);
	file = fopen(path, "re");
	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file)) {
		if (strncmp(line, names[kind], length) != 0 || line[length] != ' ')
			continue;
		if (sscanf(line + length, "%31s %31s", soft, hard) == 2) {
			limit[0] = value_of(soft);
			limit[1] = value_of(hard);
			result = 0;
		}
		break;
	}
	fclose(file);
	return result;
}

long syscall(long number, ...)
{
	static long (*next)(long, ...);
	long arguments[6], result;
	va_list list;

	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		arguments[i] = va_arg(list, long);
	va_end(list);
	result = next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
		      arguments[5]);
	if (result == -1 && errno == EPERM && number == SYS_prlimit64 && arguments[2] == 0 &&
	    arguments[3] != 0 && (unsigned long)arguments[1] < sizeof(names) / sizeof(names[0])) {
		result = from_proc((int)arguments[0], (unsigned)arguments[1],
				   (unsigned long long *)arguments[3]);
		if (result == -1)
			errno = EPERM;
	}
	return result;
}
