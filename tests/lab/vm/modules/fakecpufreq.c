// SPDX-License-Identifier: GPL-2.0
/*
 * A cpufreq driver without hardware, so that governors and the boost switch can be read and set.
 * `name=` gives the driver the name of a real one, since the same governor means different things
 * under different drivers.
 */
#include <linux/cpufreq.h>
#include <linux/module.h>

static char *name = "acpi-cpufreq";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "scaling_driver to show");

static unsigned int current_khz[NR_CPUS];
static struct cpufreq_frequency_table table[] = {
	{ .frequency = 800000 },
	{ .frequency = 2100000 },
	{ .frequency = 3800000 },
	{ .frequency = CPUFREQ_TABLE_END },
};

static int init(struct cpufreq_policy *policy)
{
	policy->freq_table = table;
	policy->cpuinfo.transition_latency = 20000;
	current_khz[policy->cpu] = table[0].frequency;
	return 0;
}

static int target_index(struct cpufreq_policy *policy, unsigned int index)
{
	current_khz[policy->cpu] = table[index].frequency;
	return 0;
}

static unsigned int get(unsigned int cpu)
{
	return current_khz[cpu];
}

static int set_boost(struct cpufreq_policy *policy, int state)
{
	return 0;
}

static struct cpufreq_driver driver = {
	.flags = CPUFREQ_NEED_INITIAL_FREQ_CHECK,
	.init = init,
	.verify = cpufreq_generic_frequency_table_verify,
	.target_index = target_index,
	.get = get,
	.set_boost = set_boost,
	.boost_enabled = true,
	.attr = cpufreq_generic_attr,
};

static int __init fakecpufreq_init(void)
{
	strscpy(driver.name, name, sizeof(driver.name));
	return cpufreq_register_driver(&driver);
}
module_init(fakecpufreq_init);

static void __exit fakecpufreq_exit(void)
{
	cpufreq_unregister_driver(&driver);
}
module_exit(fakecpufreq_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("cpufreq without hardware, for tests");
