/* SPDX-License-Identifier: Apache-2.0 */
/* Symbol visibility: everything is hidden but what carries ONCHIP_API. */
#ifndef ONCHIP_EXPORT_H_
#define ONCHIP_EXPORT_H_

#if defined(ONCHIP_STATIC)
#define ONCHIP_API
#elif defined(_WIN32)
#if defined(ONCHIP_BUILDING)
#define ONCHIP_API __declspec(dllexport)
#else
#define ONCHIP_API __declspec(dllimport)
#endif
#else
#define ONCHIP_API __attribute__((visibility("default")))
#endif

#endif /* ONCHIP_EXPORT_H_ */
